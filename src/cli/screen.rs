//! The whole terminal for a subcommand: its other screen, and keys as they are pressed; put back as it was at the end, after
//! a panic, and before an exit from elsewhere. Uses nothing of this crate.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// The other screen, no cursor, and no line goes on in the next one; and back (xterm's control sequences, DECSET).
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J";
const LEAVE: &[u8] = b"\x1b[?7h\x1b[?25h\x1b[?1049l";

/// What is to be put back.
struct Before {
    out: File,
    keys: Option<libc::termios>,
}

static BEFORE: Mutex<Option<Before>> = Mutex::new(None);

fn before() -> MutexGuard<'static, Option<Before>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The terminal behind standard output, and the keys of that behind standard input; given back when dropped.
pub struct Screen {
    out: File,
    keys: Option<File>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// It cannot be written to.
    pub fn enter() -> io::Result<Screen> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let told = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                told(panic);
            }));
        });
        let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map(File::from);
        let (mut out, spare) = (copy(io::stdout().as_fd())?, copy(io::stdout().as_fd())?);
        let keys = if io::stdin().is_terminal() { Some(copy(io::stdin().as_fd())?) } else { None };
        *before() = Some(Before { out: spare, keys: keys.as_ref().and_then(at_once) });
        let screen = out.write_all(ENTER).map(|()| Screen { out, keys });
        screen.inspect_err(|_| restore())
    }

    /// Columns and lines.
    pub fn size(&self) -> (usize, usize) {
        terminal_size::terminal_size_of(&self.out).map_or((100, 30), |(w, h)| (w.0.into(), h.0.into()))
    }

    /// Draws lines over those that are there. A terminal that takes none just now (Ctrl-S) misses this picture.
    ///
    /// # Errors
    /// It cannot be written to.
    pub fn draw(&mut self, text: &str) -> io::Result<()> {
        if before().is_none() || !ready(&self.out, libc::POLLOUT) {
            return Ok(());
        }
        let lines: Vec<&str> = text.lines().collect();
        // No line end behind the last line: it would move all others up.
        let picture = format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\n"));
        self.out.write_all(picture.as_bytes())
    }

    /// The last key that was pressed, if there was one.
    pub fn key(&mut self) -> Option<u8> {
        let keys = self.keys.as_mut().filter(|k| ready(k, libc::POLLIN))?;
        let mut pressed = [0; 64];
        let n = keys.read(&mut pressed).ok()?;
        pressed.get(..n)?.last().copied()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Puts the terminal back as it was, if it was taken; from any thread.
pub fn restore() {
    let Some(Before { mut out, keys }) = before().take() else { return };
    if let Some(keys) = keys {
        // SAFETY: a plain system call, with a struct that tcgetattr has filled.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &raw const keys) };
    }
    // A terminal that is gone needs nothing.
    let _ = out.write_all(LEAVE);
}

/// Has keys come at once and unseen, and leaves Ctrl-C alone of those that would stop or end us. Gives what was before.
fn at_once(keys: &File) -> Option<libc::termios> {
    let fd = keys.as_raw_fd();
    // SAFETY: all zero is a value of the struct; tcgetattr fills it, tcsetattr reads it.
    unsafe {
        let mut settings = std::mem::zeroed::<libc::termios>();
        if libc::tcgetattr(fd, &raw mut settings) != 0 {
            return None;
        }
        let before = settings;
        settings.c_lflag &= !(libc::ICANON | libc::ECHO);
        for key in [libc::VSUSP, libc::VQUIT] {
            settings.c_cc[key] = libc::_POSIX_VDISABLE;
        }
        (libc::tcsetattr(fd, libc::TCSANOW, &raw const settings) == 0).then_some(before)
    }
}

fn ready(file: &File, events: libc::c_short) -> bool {
    let mut asked = libc::pollfd { fd: file.as_raw_fd(), events, revents: 0 };
    // SAFETY: one entry, as said.
    unsafe { libc::poll(&raw mut asked, 1, 0) == 1 && asked.revents & events != 0 }
}

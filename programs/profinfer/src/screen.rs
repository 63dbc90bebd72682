//! The full terminal for a subcommand: its alternate screen, with keys as they are pressed. Restored at the end,
//! after a panic, and before an exit from elsewhere.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

/// Alternate screen, hidden cursor, no line wrap; and back (xterm's control sequences, DECSET).
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J";
const LEAVE: &[u8] = b"\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The state to restore.
struct SavedTerminal {
    out: File,
    keys: Option<Termios>,
}

static BEFORE: Mutex<Option<SavedTerminal>> = Mutex::new(None);

fn before() -> MutexGuard<'static, Option<SavedTerminal>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The terminal on standard output, and the keys of the one on standard input; restored when dropped.
pub struct Screen {
    out: File,
    keys: Option<File>,
}

impl Screen {
    /// Takes over the terminal.
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
        *before() = Some(SavedTerminal { out: spare, keys: keys.as_ref().and_then(at_once) });
        let screen = out.write_all(ENTER).map(|()| Screen { out, keys });
        screen.inspect_err(|_| restore())
    }

    /// Columns and lines.
    pub fn size(&self) -> (usize, usize) {
        terminal_size::terminal_size_of(&self.out).map_or((100, 30), |(w, h)| (w.0.into(), h.0.into()))
    }

    /// Draws lines over the existing ones. A terminal that is not accepting output (Ctrl-S) misses this frame.
    ///
    /// # Errors
    /// It cannot be written to.
    pub fn draw(&mut self, text: &str) -> io::Result<()> {
        if before().is_none() || !ready(&self.out, PollFlags::OUT) {
            return Ok(());
        }
        let lines: Vec<&str> = text.lines().collect();
        // No line end after the last line: it would scroll all others up.
        let picture = format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\n"));
        self.out.write_all(picture.as_bytes())
    }

    /// Whether keys can be read.
    pub fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    /// The keys pressed since the last call. A key that sends a sequence of bytes, such as an arrow, is none.
    pub fn pressed(&mut self) -> Vec<u8> {
        let mut pressed = [0; 64];
        let keys = self.keys.as_mut().filter(|k| ready(k, PollFlags::IN));
        let n = keys.and_then(|keys| keys.read(&mut pressed).ok()).unwrap_or(0);
        let pressed = pressed.get(..n).unwrap_or_default();
        let escape = 0x1b;
        if pressed.contains(&escape) { Vec::new() } else { pressed.to_vec() }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal if it was taken over; from any thread.
pub fn restore() {
    let Some(SavedTerminal { mut out, keys }) = before().take() else { return };
    if let Some(keys) = keys {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &keys);
    }
    // A closed terminal needs nothing.
    let _ = out.write_all(LEAVE);
}

/// Makes keys arrive immediately and without echo. Of the keys that stop or end the process, only Ctrl-C still
/// works. Returns the previous settings.
fn at_once(keys: &File) -> Option<Termios> {
    let before = tcgetattr(keys).ok()?;
    let mut settings = before.clone();
    settings.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    for key in [SpecialCodeIndex::VSUSP, SpecialCodeIndex::VQUIT] {
        settings.special_codes[key] = libc::_POSIX_VDISABLE;
    }
    tcsetattr(keys, OptionalActions::Now, &settings).ok()?;
    Some(before)
}

fn ready(file: &File, events: PollFlags) -> bool {
    let mut asked = [PollFd::new(file, events)];
    poll(&mut asked, Some(&Timespec::default())).is_ok_and(|n| n == 1)
        && asked[0].revents().intersects(events)
}

//! What a hit costs here from inside a process: measured in one that does nothing else.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::area::Area;
use super::door::{Caller, Door, DoorError};
use super::moved;
use super::state::{MACHINE, number};
use super::vdso;
use engine::elf::ElfMachine;
use engine::probes::Prog;
use machine::{maps, wake};

/// Calls in one measurement, and how many are made: the fastest was disturbed least.
const CALLS: u32 = 500;
const TIMES: u32 = 9;
/// Bytes of a ring: it holds the events of one measurement, after which it is emptied.
const RING: u64 = 128 << 10;
const PATIENCE: Duration = Duration::from_secs(5);

/// Nanoseconds of a call with programs, without the call itself.
#[derive(Debug, Clone, Copy)]
pub struct Costs {
    pub op: f64,
    pub op_and_barrier: f64,
    /// A call with a program at its entry and one at its return.
    pub call: f64,
}

/// Why they are unknown.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    #[error(transparent)]
    Door(#[from] DoorError),
    #[error("no program could be started for it: {0}")]
    Start(#[source] io::Error),
    #[error(
        "'true' ended without loading the library: it is linked statically, or its loader ignores LD_PRELOAD"
    )]
    NotLoaded,
    #[error("{0}")]
    Process(#[source] io::Error),
}

/// An empty function, with room for a jump.
fn empty_function() -> &'static [u8] {
    match MACHINE {
        ElfMachine::X86_64 => &[0xc3, 0x90, 0x90, 0x90, 0x90, 0x90],
        ElfMachine::Aarch64 => &[0xc0, 0x03, 0x5f, 0xd6],
    }
}

/// Measures in a process of `true`, which most systems link dynamically.
///
/// # Errors
/// That program, its loader or the kernel does not take part.
pub fn costs() -> Result<Costs, MeasureError> {
    let door = Door::open()?;
    let (name, value) = door.variable();
    let mut command = Command::new("true");
    command.env(name, value).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(MeasureError::Start)?;
    let measured =
        caller(&door, &mut child).and_then(|caller| measure(caller).map_err(MeasureError::Process));
    drop(door);
    let _ = child.wait();
    measured
}

fn caller(door: &Door, child: &mut Child) -> Result<Caller, MeasureError> {
    let begin = Instant::now();
    loop {
        if let Some(caller) = door.next() {
            return Ok(caller);
        }
        if begin.elapsed() > PATIENCE || child.try_wait().map_err(MeasureError::Start)?.is_some() {
            let _ = child.kill();
            return Err(MeasureError::NotLoaded);
        }
        wake::poll(&mut [], Duration::from_millis(1));
    }
}

fn measure(caller: Caller) -> io::Result<Costs> {
    let maps = maps::read(caller.pid)?;
    let (clock, getcpu) = vdso(&maps);
    let start = inside::Start { clock, getcpu, tgid: caller.pid, ..inside::Start::default() };
    let mut area = Area::new(&start, RING)?;
    caller.order(&inside::Order::area(area.bytes()), area.file.as_ref().map(File::as_fd))?;
    let room = moved::room(MACHINE, empty_function()).map_err(io::Error::other)?;
    let page = super::jumps::free_page(
        &maps.iter().map(|m| (m.start, m.end)).collect::<Vec<_>>(),
        caller.hello.thunk,
    );
    let page = page.ok_or(io::ErrorKind::OutOfMemory)?;
    let mut code = inside::Order::new(inside::CODE);
    code.address = page;
    let at = |site: usize| page + (site * moved::SLOT) as u64;
    let programs = [(Prog::Op, None), (Prog::Barrier, None), (Prog::TokenProcess, Some(Prog::TokenExit))];
    for (site, (enter, leave)) in programs.into_iter().enumerate() {
        let slot = room.slot(page, at(site), caller.hello.thunk, site).ok_or(io::ErrorKind::InvalidData)?;
        code.bytes[site * moved::SLOT..][..moved::SLOT].copy_from_slice(&slot);
        // What goes on behind the moved instruction never runs: it returns.
        let number = |prog: Option<Prog>| prog.and_then(number).unwrap_or(0);
        let leave_on = u32::from(leave.is_some());
        let (enter_program, leave_program) = (number(Some(enter)), number(leave));
        area.site(
            site,
            &inside::Site {
                enter: 1,
                leave: leave_on,
                enter_program,
                leave_program,
                ..inside::Site::default()
            },
        );
    }
    caller.order(&code, None)?;
    area.admit(1);
    let mut event = vec![0; 1024];
    let mut time = |first: u64, second: u64| {
        let mut order = inside::Order::new(inside::MEASURE);
        (order.length, order.address) = (CALLS, first);
        order.old[..8].copy_from_slice(&second.to_ne_bytes());
        let mut fastest = i64::MAX;
        for _ in 0..TIMES {
            fastest = fastest.min(caller.ask(&order, None)?);
            area.read(&mut event, &mut |_| {});
        }
        Ok::<_, io::Error>(fastest as f64 / f64::from(CALLS))
    };
    let costs = Costs { op: time(at(0), 0)?, op_and_barrier: time(at(0), at(1))?, call: time(at(2), 0)? };
    caller.go();
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_has_a_cost_here() {
        match costs() {
            Ok(costs) => {
                assert!(costs.op > 1.0 && costs.op_and_barrier > costs.op && costs.call > 1.0, "{costs:?}")
            }
            Err(e @ (MeasureError::NotLoaded | MeasureError::Start(_))) => println!("skipped: {e}"),
            Err(e) => panic!("{e}"),
        }
    }
}

//! A recording that outlasts its targets and its traces: targets come and go, one trace ends and the next begins, the ring is
//! written out. Uses what the session uses.

use std::time::{Duration, Instant};

use super::setup::{header, roles};
use super::writing::Counted;
use super::{DOUBT, Session, levels};
use crate::agent::attached::Role;
use crate::agent::books::{self, Own, Standing};
use crate::agent::drain::Shown;
use crate::agent::kin;
use crate::agent::recording::{Order, Progress, RecordError, Watch};
use crate::agent::skel::types::ev_kind;
use crate::agent::source::Books;
use crate::agent::{machine, phases, pmc, target, usage};
use crate::trace::Output;
use crate::trace::record::{Feature, Notice};

/// So many parents' parents are asked whose a process is.
const ABOVE: usize = 64;

/// Where a trace begins in the books of its recording.
#[derive(Default)]
pub(super) struct Base {
    pub shown: Vec<Shown>,
    pub standing: Standing,
}

impl Session {
    /// Does what is ordered.
    pub(super) fn obey(&mut self, now: &Progress, watch: &mut dyn Watch) -> Result<(), RecordError> {
        if !self.fed {
            return Ok(());
        }
        if self.ring.as_ref().is_some_and(|r| r.borrow().unstamped()) {
            self.stamp();
        }
        self.place_strays(watch)?;
        loop {
            let order = watch.order(now, &self.drain.borrow().kin);
            self.drain.borrow_mut().kin.meters.retain(|m| !m.over);
            let done = match order {
                None => return Ok(()),
                Some(Order::Follow(pid, run)) => self.take_in(pid, run, watch),
                Some(Order::Unfollow(run)) => self.release(run),
                Some(Order::Turn(out, why)) => self.turn(out, why, watch),
                Some(Order::Dump(out)) => self.dump(out, watch),
            };
            match done {
                Err(e @ RecordError::Write(_)) => return Err(e),
                done => watch.done(done.map_err(|e| e.to_string())),
            }
        }
    }

    /// Finds out whose the processes are of whose fork nothing was seen.
    fn place_strays(&mut self, watch: &mut dyn Watch) -> Result<(), RecordError> {
        let crowded = self.drain.borrow().kin.crowded;
        if crowded && !std::mem::replace(&mut self.crowd_told, true) {
            let most = kin::MOST;
            watch.tell(&format!(
                "more than {most} processes decode: tokens of all are counted, but no more have a rate, and can fire a trigger"
            ));
        }
        loop {
            let Some(pid) = self.drain.borrow_mut().kin.strays.pop() else { return Ok(()) };
            let above = std::iter::successors(target::parent(pid), |&p| target::parent(p));
            let run_of = |p| self.drain.borrow().kin.run_of(p).filter(|&run| run != 0);
            let run = above.take(ABOVE).find_map(run_of);
            match run {
                Some(run) if target::alive(pid) => {
                    self.drain.borrow_mut().kin.adopt(pid, run);
                    self.pids.entry(pid).or_insert(0);
                }
                Some(run) => self.drain.borrow_mut().kin.own(pid, run),
                None => {
                    watch.tell(&format!("process {pid} is recorded no more: whose child it is was not seen"));
                    self.let_go(pid)?;
                    self.drain.borrow_mut().kin.meters.retain(|m| m.pid != pid);
                }
            }
        }
    }

    fn take_in(&mut self, pid: u32, run: u32, watch: &mut dyn Watch) -> Result<(), RecordError> {
        match pid == run {
            true => self.drain.borrow_mut().kin.begin(pid),
            false => self.drain.borrow_mut().kin.adopt(pid, run),
        }
        self.follow(pid);
        // Looked at behind the beginning: an end before that went unseen.
        if !target::alive(pid) {
            self.let_go(pid)?;
            return Err(RecordError::Ended(pid));
        }
        // A number that was a stranger's may be another file's by now.
        self.strangers.clear();
        match self.scan_one(pid, watch) {
            Err(e @ RecordError::Beyond) => self.refuse(pid, e, watch),
            Err(e) => self.let_go(pid).and(Err(e)),
            Ok(()) => Ok(()),
        }
    }

    pub(super) fn let_go(&mut self, pid: u32) -> Result<(), RecordError> {
        self.source.drop_target(pid);
        self.take_all()?;
        self.drain.borrow_mut().part(pid, usage::now())?;
        self.forget(pid);
        Ok(())
    }

    /// Lets all processes of a run go.
    pub(super) fn release(&mut self, run: u32) -> Result<(), RecordError> {
        loop {
            let all = self.drain.borrow().kin.of(run);
            if all.is_empty() {
                return Ok(());
            }
            all.iter().for_each(|&pid| self.source.drop_target(pid));
            // Those born meanwhile are known behind that.
            self.take_all()?;
            for pid in all {
                self.drain.borrow_mut().part(pid, usage::now())?;
                self.forget(pid);
            }
        }
    }

    /// Lets those go that have ended without an event that says so, and threads that were taken for processes.
    pub(super) fn bury(&mut self) -> Result<(), RecordError> {
        for &pid in self.pids.keys().filter(|_| self.fed) {
            if !target::alive(pid) && self.doubtful.iter().all(|one| one.0 != pid) {
                self.doubtful.push((pid, Instant::now()));
            }
        }
        let (due, wait) =
            std::mem::take(&mut self.doubtful).into_iter().partition(|one| one.1.elapsed() >= DOUBT);
        self.doubtful = wait;
        for (pid, _) in Vec::<(u32, Instant)>::into_iter(due) {
            if self.pids.contains_key(&pid) && target::alive(pid) {
                continue;
            }
            let met = self.drain.borrow().kin.is_met(pid) || self.pids.contains_key(&pid);
            match met {
                true => self.let_go(pid)?,
                // Nothing is known of it but that it began.
                false => self.drain.borrow_mut().kin.leave(pid, 0),
            }
        }
        Ok(())
    }

    /// A process that has ended or is let go.
    pub(super) fn forget(&mut self, pid: u32) {
        self.engines.iter_mut().for_each(|a| a.exit(pid));
        self.pids.remove(&pid);
        self.halted.remove(&pid);
        self.described.remove(&pid);
        self.drain.borrow_mut().enc.forget_process(pid);
    }

    /// Says all that a trace says at its end but the footer; gives the books.
    pub(super) fn account(&mut self) -> Result<Books, RecordError> {
        self.write_features()?;
        self.budget_kept()?;
        let wanted = levels::top(self.options.level, self.options.structure);
        for engine in 0..self.engines.len() as u16 {
            if self.engines[engine as usize].written.is_empty() {
                self.write_modules(engine, None)?;
            }
        }
        let (books, counted) = (self.source.books(), self.counted());
        let drain = &mut *self.drain.borrow_mut();
        for text in drain.shortages() {
            drain.enc.notice(&Notice { t: usage::now() as i64, text: &text })?;
        }
        if let Some(counters) = &self.counters {
            counters.tell(&mut drain.enc)?;
        }
        if let Some(s) = counted {
            drain.enc.feature(&Feature { name: pmc::NAME, state: s.state, why: &s.why })?;
        }
        let roles = roles(wanted, self.options.phases);
        books::rungs(drain, &self.engines, roles, &self.base.shown)?;
        if self.options.experts {
            let known = self.engines.iter().any(|a| a.engine.tables.op("MUL_MAT_ID").is_some());
            drain.experts.feature(&mut drain.enc, known, books.kinds[ev_kind::EV_EXPERTS.0 as usize].lost)?;
        }
        let mut probed: Vec<&str> = self.engines.iter().flat_map(|a| a.probed_symbols(Role::Wait)).collect();
        crate::order::by(&mut probed, |a, b| a.cmp(b));
        probed.dedup();
        if let Some((state, why)) = drain.waiting.standing(&probed) {
            drain.enc.feature(&Feature { name: "device", state, why: &why })?;
        }
        if self.options.phases {
            let mut probed: Vec<&str> =
                self.engines.iter().flat_map(|a| a.probed_symbols(Role::Phase)).collect();
            crate::order::by(&mut probed, |a, b| a.cmp(b));
            probed.dedup();
            phases::feature(&mut drain.enc, &probed, books.kinds[ev_kind::EV_PHASE.0 as usize].lost)?;
        }
        Ok(books)
    }

    pub(super) fn standing(&self, books: Books, now: u64) -> Standing {
        let stats = self.engines.iter().map(|a| a.prober.run_stats()).chain([self.source.run_stats()]);
        let bpf = stats.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let own = Own { wall_ns: now.saturating_sub(self.started), cpu_us: usage::cpu_us(), bpf };
        Standing::of(books, &self.drain.borrow(), own)
    }

    /// Takes what has arrived.
    fn take_all(&mut self) -> Result<(), RecordError> {
        self.source.poll(Duration::ZERO);
        self.drain.borrow_mut().take_error().map_or(Ok(()), |e| Err(e.into()))
    }

    /// Takes what has arrived, and says what there is to say at a trace's end.
    fn pause(&mut self, watch: &mut dyn Watch) -> Result<Standing, RecordError> {
        self.take_all()?;
        self.meet_processes(watch)?;
        let books = self.account()?;
        Ok(self.standing(books, usage::now()))
    }

    fn turn(
        &mut self,
        out: Box<dyn Output>,
        why: &'static str,
        watch: &mut dyn Watch,
    ) -> Result<(), RecordError> {
        let standing = self.pause(watch)?;
        let footer = standing.closing(&self.base.standing, why, false);
        let machine = machine::read();
        let header = header(&self.options, &self.road, &machine, self.hit_ns);
        let mut drain = self.drain.borrow_mut();
        drain.enc.turn(Counted { out, bytes: 0 }, &footer.of(), &header)?;
        self.base = Base { shown: drain.shown.clone(), standing: standing.told() };
        drop(drain);
        Ok(self.write_level()?)
    }

    /// Tells the ring how the books stand.
    fn stamp(&mut self) {
        let Some(ring) = &self.ring else { return };
        let books = flat(&self.standing(self.source.books(), usage::now()));
        ring.borrow_mut().stamp(&books);
    }

    fn dump(&mut self, mut out: Box<dyn Output>, watch: &mut dyn Watch) -> Result<(), RecordError> {
        let Some(ring) = self.ring.clone() else {
            return Err(RecordError::Dump {
                source: std::io::Error::other("there is none, the recording is in files"),
            });
        };
        let standing = self.pause(watch)?;
        if ring.borrow().dropped() > 0 {
            let text = "this is the end of a longer recording, of which a ring has kept the last part";
            self.drain.borrow_mut().enc.notice(&Notice { t: usage::now() as i64, text })?;
        }
        let machine = machine::read();
        let header = header(&self.options, &self.road, &machine, self.hit_ns);
        let footer = standing.closing(&unflat(ring.borrow().base()), "ring written out", false);
        let enc = &mut self.drain.borrow_mut().enc;
        enc.seal_now()?;
        let (first, last) = (enc.loose(&header, None)?, enc.loose(&header, Some(&footer.of()))?);
        ring.borrow_mut().stamp(&flat(&standing));
        let written = ring.borrow().write(&mut out, &first, &last);
        written.map_err(|source| RecordError::Dump { source })
    }
}

/// Received, and lost, by kind; barriers seen and lost.
fn flat(s: &Standing) -> Vec<u64> {
    let barriers = &s.books.barriers;
    let lost = s.books.kinds.iter().map(|k| k.lost);
    s.received.into_iter().chain(lost).chain([barriers.seen, barriers.lost]).collect()
}

fn unflat(books: &[u64]) -> Standing {
    let mut s = Standing::default();
    let mut numbers = books.iter().copied();
    s.received.iter_mut().for_each(|n| *n = numbers.next().unwrap_or(0));
    s.books.kinds.iter_mut().for_each(|k| k.lost = numbers.next().unwrap_or(0));
    s.books.barriers.seen = numbers.next().unwrap_or(0);
    s.books.barriers.lost = numbers.next().unwrap_or(0);
    s
}

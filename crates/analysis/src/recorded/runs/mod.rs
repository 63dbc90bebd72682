//! The runs of a recording: its processes, and the contexts of a process that has several (a draft model and its
//! target, two engines in one process). Figures are of one run; this is the table that lists them.
//!
//! A call's model is identified by the weights that its operators read, its context by the address of the graph,
//! which the engine rebuilds in the same place for each call. Below level op there are no weights, below level
//! graph no graphs.

mod union;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use self::union::Union;
use crate::recorded::calls::{Call, CallSource, Phase, RunWork, Timeline};
use crate::recorded::describe;
use crate::recorded::load::Loaded;
use crate::recorded::model::{ModelFacts, model_of};
use common::order;
use common::redact;
use requests::ChunkWork;

/// A requested run: `PID`, or `PID:N` for the N-th context of a process that has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunId {
    pub pid: u32,
    /// Starts at 1.
    pub context: Option<u32>,
}

impl From<u32> for RunId {
    fn from(pid: u32) -> RunId {
        RunId { pid, context: None }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.context {
            Some(n) => write!(f, "{}:{n}", self.pid),
            None => write!(f, "{}", self.pid),
        }
    }
}

impl FromStr for RunId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<RunId, &'static str> {
        let number = |text: &str| text.parse().ok().filter(|n: &u32| *n > 0);
        let id = match text.split_once(':') {
            Some((pid, n)) => number(pid).zip(number(n)).map(|(pid, n)| RunId { pid, context: Some(n) }),
            None => number(text).map(RunId::from),
        };
        id.ok_or("expected a process (e.g. 4242) or one of its contexts (e.g. 4242:2)")
    }
}

/// A row of the table of runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunRow {
    pub pid: u32,
    /// Starts at 1; null if the process has one context, or its contexts cannot be distinguished.
    pub context: Option<u32>,
    /// Command line, else the program; empty if the recording has neither.
    pub command: String,
    pub model: ModelFacts,
    pub calls: u64,
    /// Of the calls that ended before the recording; null if the width of a batch was not recorded.
    pub tokens: Option<u64>,
    /// Tokens over the time in calls, by phase; null if the phase has no complete call or its tokens are not
    /// known.
    pub prefill_tokens_per_s: Option<f64>,
    pub decode_tokens_per_s: Option<f64>,
    /// Time in calls.
    pub in_call_ns: u64,
    /// The figures outside this table are of this run.
    pub shown: bool,
    /// It drafts tokens: another context of the process verifies drafts, and this one does not. Omitted if false.
    #[serde(skip_serializing_if = "common::is_default")]
    pub draft: bool,
    /// Why calls in this row may be of several models or contexts; null: they are of one.
    pub mixed: Option<&'static str>,
}

impl RunRow {
    /// The id used to request the run.
    pub fn id(&self) -> RunId {
        RunId { pid: self.pid, context: self.context }
    }
}

/// The runs, and the run of each call and graph.
pub struct Runs {
    /// Sorted by process; the contexts of a process in the order in which they began.
    pub list: Vec<RunRow>,
    /// Parallel to [`Timeline::calls`]: the index in `list`.
    pub of_call: Vec<usize>,
    /// Parallel to [`Loaded::cpu_graphs`].
    pub of_cpu: Vec<usize>,
}

/// More graph addresses than this do not count as contexts: the engine builds each graph in a different place.
const CONTEXTS: usize = 8;

const NO_GRAPHS: &str =
    "no graphs of these calls were recorded, so the process's contexts and models cannot be distinguished";
const NO_STRUCTURE: &str = "no weights were recorded, so the process's models cannot be distinguished";
const NO_WEIGHTS: &str =
    "it is unknown which of the process's models made these calls: their graphs were not recorded";
const MANY: &str = "graphs are at too many addresses to distinguish contexts of one model";

/// Identity of a call: the weights and the graphs it used, as groups of those that were used together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct CallIdentity {
    model: Option<usize>,
    graph: Option<usize>,
}

impl Runs {
    /// Splits a recording into runs.
    pub fn of(loaded: &Loaded<'_>, line: &Timeline) -> Runs {
        let weights = PlanWeights::of(loaded, line);
        let mut marks = weights.marks(loaded, line);
        let mut mixed: HashMap<u32, &'static str> = HashMap::new();
        if line.work == RunWork::Graphs {
            // Its graphs form one run, listed by kind.
            marks.fill(CallIdentity::default());
        } else {
            settle(line, &mut marks, &mut mixed, &decode_sizes(loaded, line));
        }
        let mut keys: Vec<(u32, CallIdentity)> = Vec::new();
        let mut at: HashMap<(u32, CallIdentity), usize> = HashMap::new();
        let mut place = |pid: u32, mark: CallIdentity| {
            *at.entry((pid, mark)).or_insert_with(|| {
                keys.push((pid, mark));
                keys.len() - 1
            })
        };
        let mut of_call: Vec<usize> =
            line.calls.iter().zip(&marks).map(|(call, mark)| place(call.pid, *mark)).collect();
        let most = most_calls(&line.calls, &of_call);
        let mut of_model: HashMap<(u32, usize), usize> = HashMap::new();
        for ((call, mark), run) in line.calls.iter().zip(&marks).zip(&of_call) {
            if let Some(model) = mark.model {
                of_model.entry((call.pid, model)).or_insert(*run);
            }
        }
        let mut of_cpu: Vec<usize> = Vec::with_capacity(loaded.cpu_graphs.len());
        for (graph, call) in loaded.cpu_graphs.iter().zip(&line.cpu_call) {
            // Outside calls the graph's weights decide; otherwise it counts towards the run with the most calls.
            let model = || of_model.get(&(graph.pid, weights.of_plan(graph.plan?)?)).copied();
            let run = call.and_then(|c| of_call.get(c)).copied().or_else(model);
            let run = run.or_else(|| most.get(&graph.pid).copied());
            of_cpu.push(run.unwrap_or_else(|| place(graph.pid, CallIdentity::default())));
        }
        // A process may have graphs while only other processes have calls.
        for graph in loaded.graphs.iter().filter(|g| !most.contains_key(&g.pid)) {
            place(graph.pid, CallIdentity::default());
        }
        let order = sorted(&keys, &line.calls, &of_call);
        for run in of_call.iter_mut().chain(&mut of_cpu) {
            *run = order.get(*run).copied().unwrap_or(0);
        }
        let mut list = vec![None; keys.len()];
        for ((pid, mark), place) in keys.iter().zip(&order) {
            if let Some(slot) = list.get_mut(*place) {
                *slot = Some((*pid, *mark));
            }
        }
        let keys: Vec<(u32, CallIdentity)> = list.into_iter().flatten().collect();
        let list = rows(loaded, line, &keys, &of_call, &of_cpu, &mixed);
        Runs { list, of_call, of_cpu }
    }

    /// Index in the list of the requested run. Defaults: the process with the most calls, and its context with
    /// the most time in calls that is not of a draft model.
    pub fn choose(&self, pid: Option<u32>, context: Option<u32>) -> Option<usize> {
        let mut calls: HashMap<u32, u64> = HashMap::new();
        for row in &self.list {
            *calls.entry(row.pid).or_default() += row.calls;
        }
        let rows = || self.list.iter().enumerate();
        let busiest = || rows().rev().max_by_key(|(_, r)| calls.get(&r.pid)).map(|(_, r)| r.pid);
        let pid = pid.or_else(busiest)?;
        let of_it = || rows().filter(|(_, r)| r.pid == pid);
        match context {
            Some(n) => of_it().find(|(_, r)| r.context == Some(n)).map(|(i, _)| i),
            None => of_it().rev().max_by_key(|(_, r)| (!r.draft, r.in_call_ns)).map(|(i, _)| i),
        }
    }

    /// Whether a process has several contexts.
    pub fn several(&self, pid: u32) -> bool {
        self.list.iter().filter(|r| r.pid == pid).count() > 1
    }
}

/// Weights by the plans that read them, grouped by joint use in calls.
struct PlanWeights {
    /// Any weight of each plan, then its group.
    of_plan: HashMap<u32, usize>,
}

impl PlanWeights {
    fn of(loaded: &Loaded<'_>, line: &Timeline) -> PlanWeights {
        let (mut union, mut of_plan) = (Union::default(), HashMap::new());
        let mut known: HashMap<(u32, u64, &str), usize> = HashMap::new();
        let mut names: Vec<(u32, &str)> = Vec::new();
        let mut of_hit: HashMap<u32, Option<usize>> = HashMap::new();
        let mut plans: Vec<u32> = loaded.plans.keys().copied().collect();
        plans.sort_unstable();
        for id in plans {
            for (hit, _) in loaded.plans.get(&id).iter().flat_map(|plan| &plan.hits) {
                let weight = *of_hit.entry(*hit).or_insert_with(|| {
                    let w = weight(loaded, *hit)?;
                    Some(*known.entry(w).or_insert_with(|| {
                        names.push((w.0, w.2));
                        union.add()
                    }))
                });
                if let Some(weight) = weight {
                    let first = *of_plan.entry(id).or_insert(weight);
                    union.join(first, weight);
                }
            }
        }
        if line.source == CallSource::Token {
            join_calls(loaded, line, &of_plan, &mut union);
        } else {
            join_names(&names, &mut union);
        }
        let roots = union.roots();
        for weight in of_plan.values_mut() {
            *weight = roots.get(*weight).copied().unwrap_or(*weight);
        }
        PlanWeights { of_plan }
    }
    fn of_plan(&self, plan: u32) -> Option<usize> {
        self.of_plan.get(&plan).copied()
    }

    /// The identity of each call.
    fn marks(&self, loaded: &Loaded<'_>, line: &Timeline) -> Vec<CallIdentity> {
        let mut marks = vec![CallIdentity::default(); line.calls.len()];
        for (graph, call) in loaded.cpu_graphs.iter().zip(&line.cpu_call) {
            let model = graph.plan.and_then(|plan| self.of_plan(plan));
            if let (Some(mark), Some(_)) = (call.and_then(|c| marks.get_mut(c)), model) {
                mark.model = model;
            }
        }
        if line.source != CallSource::Token {
            return marks;
        }
        let index: HashMap<u64, usize> = line.calls.iter().enumerate().map(|(i, c)| (c.seq, i)).collect();
        let (mut union, mut places, mut known) = (Union::default(), HashMap::new(), HashMap::new());
        let mut of_call: Vec<Option<usize>> = vec![None; marks.len()];
        for graph in &loaded.graphs {
            let Some(call) = graph.token.and_then(|seq| index.get(&seq)) else { continue };
            let place = *places.entry((graph.pid, graph.cgraph)).or_insert_with(|| union.add());
            if let Some(slot) = of_call.get_mut(*call) {
                union.join(slot.unwrap_or(place), place);
                *slot = Some(place);
            }
        }
        // Where the context is known, its graphs' addresses need not tell.
        for part in loaded.causes.ubatches.iter().filter(|u| u.context != 0) {
            let slot = part.token.and_then(|seq| index.get(&seq)).and_then(|call| of_call.get_mut(*call));
            if let Some(slot) = slot {
                let place = *known.entry((part.pid, part.context)).or_insert_with(|| union.add());
                *slot = Some(place);
            }
        }
        let roots = union.roots();
        for (mark, place) in marks.iter_mut().zip(of_call) {
            mark.graph = place.and_then(|place| roots.get(place).copied());
        }
        marks
    }
}

/// All weights read by one call belong to one model.
fn join_calls(loaded: &Loaded<'_>, line: &Timeline, of_plan: &HashMap<u32, usize>, union: &mut Union) {
    let mut first: HashMap<usize, usize> = HashMap::new();
    for (graph, call) in loaded.cpu_graphs.iter().zip(&line.cpu_call) {
        let weight = graph.plan.and_then(|plan| of_plan.get(&plan)).copied();
        if let (Some(call), Some(weight)) = (call, weight) {
            let first = *first.entry(*call).or_insert(weight);
            union.join(first, weight);
        }
    }
}

/// A graph may be only a part of a model: parts belong together as long as no weight name occurs at two places.
fn join_names(names: &[(u32, &str)], union: &mut Union) {
    let mut models: Vec<(u32, usize, HashSet<&str>)> = Vec::new();
    let mut parts: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut at: HashMap<usize, usize> = HashMap::new();
    for weight in 0..names.len() {
        let root = union.root(weight);
        let part = *at.entry(root).or_insert_with(|| {
            parts.push((root, Vec::new()));
            parts.len() - 1
        });
        if let Some((_, weights)) = parts.get_mut(part) {
            weights.push(weight);
        }
    }
    for (root, weights) in parts {
        let own: Vec<(u32, &str)> = weights.iter().filter_map(|w| names.get(*w).copied()).collect();
        let Some(&(pid, _)) = own.first() else { continue };
        let free = |m: &&mut (u32, usize, HashSet<&str>)| {
            m.0 == pid && own.iter().all(|(_, name)| !m.2.contains(name))
        };
        match models.iter_mut().take(CONTEXTS).find(free) {
            Some((_, first, there)) => {
                there.extend(own.iter().map(|(_, name)| *name));
                union.join(*first, root);
            }
            None => models.push((pid, root, own.iter().map(|(_, name)| *name).collect())),
        }
    }
}

/// The weight that a multiplication or a lookup reads: process, address and name.
fn weight<'l>(loaded: &'l Loaded<'_>, hit: u32) -> Option<(u32, u64, &'l str)> {
    let t = loaded.tensors.get(&hit).filter(|t| t.known)?;
    let w = describe::weight(loaded, t)?;
    Some((w.pid, w.addr, &w.name))
}

/// Node counts of single-token graphs, by call; 0: not such a call, or not known.
fn decode_sizes(loaded: &Loaded<'_>, line: &Timeline) -> Vec<u32> {
    let index: HashMap<u64, usize> = line.calls.iter().enumerate().map(|(i, c)| (c.seq, i)).collect();
    let mut sizes = vec![0; line.calls.len()];
    for graph in loaded.graphs.iter().filter(|g| g.ubatch == 1) {
        let call = graph.token.and_then(|seq| index.get(&seq));
        if let Some(size) = call.and_then(|c| sizes.get_mut(*c)) {
            *size = graph.n_nodes;
        }
    }
    sizes
}

/// Calls of one process, model and graph address.
struct CallGroup {
    calls: Vec<usize>,
    from: i64,
    to: i64,
    sizes: HashSet<u32>,
}

/// Merges what is not a difference between contexts, and notes where contexts cannot be distinguished.
fn settle(
    line: &Timeline,
    marks: &mut [CallIdentity],
    mixed: &mut HashMap<u32, &'static str>,
    sizes: &[u32],
) {
    let calls = &line.calls;
    let nothing_told = if line.source == CallSource::Token { NO_GRAPHS } else { NO_STRUCTURE };
    let mut pids: Vec<u32> = calls.iter().map(|c| c.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    let mut of_pid: HashMap<u32, Vec<usize>> = HashMap::new();
    for (i, call) in calls.iter().enumerate() {
        of_pid.entry(call.pid).or_default().push(i);
    }
    for pid in pids {
        let own = of_pid.remove(&pid).unwrap_or_default();
        models_of_graphs(&own, marks);
        let mut models: Vec<Option<usize>> =
            own.iter().filter_map(|i| marks.get(*i)).map(|m| m.model).collect();
        models.sort_unstable();
        models.dedup();
        for model in &models {
            let of_model: Vec<usize> =
                own.iter().copied().filter(|i| marks.get(*i).is_some_and(|m| m.model == *model)).collect();
            contexts(pid, calls, &of_model, marks, mixed, sizes);
        }
        let nothing = |i: &usize| marks.get(*i).is_none_or(|m| *m == CallIdentity::default());
        match models.len() {
            1 if own.iter().all(nothing) => drop(mixed.insert(pid, nothing_told)),
            1 => {}
            // One model, plus calls of which little was recorded: assume that they belong to it.
            2 if models.first() == Some(&None) => {
                for i in &own {
                    if let Some(mark) = marks.get_mut(*i).filter(|m| m.model.is_none()) {
                        mark.model = models.get(1).copied().flatten();
                    }
                }
                let of_model = own.clone();
                contexts(pid, calls, &of_model, marks, mixed, sizes);
            }
            _ => {}
        }
    }
}

/// Calls without recorded weights get the model that the same graph address has in other calls.
fn models_of_graphs(own: &[usize], marks: &mut [CallIdentity]) {
    let mut of: HashMap<usize, HashSet<usize>> = HashMap::new();
    for mark in own.iter().filter_map(|i| marks.get(*i)) {
        if let (Some(graph), Some(model)) = (mark.graph, mark.model) {
            of.entry(graph).or_default().insert(model);
        }
    }
    for i in own {
        let Some(mark) = marks.get_mut(*i).filter(|m| m.model.is_none()) else { continue };
        let models = mark.graph.and_then(|graph| of.get(&graph)).filter(|models| models.len() == 1);
        mark.model = models.and_then(|models| models.iter().next().copied());
    }
}

/// Contexts of one model are those whose calls alternate; a context whose graphs moved remains the same.
fn contexts(
    pid: u32,
    calls: &[Call],
    of_model: &[usize],
    marks: &mut [CallIdentity],
    mixed: &mut HashMap<u32, &'static str>,
    sizes: &[u32],
) {
    let mut groups: HashMap<usize, CallGroup> = HashMap::new();
    for i in of_model {
        let (Some(call), Some(graph)) = (calls.get(*i), marks.get(*i).and_then(|m| m.graph)) else {
            continue;
        };
        let group = groups.entry(graph).or_insert_with(|| CallGroup {
            calls: Vec::new(),
            from: call.start,
            to: call.end(),
            sizes: HashSet::new(),
        });
        group.calls.push(*i);
        group.to = group.to.max(call.end());
        group.sizes.extend(sizes.get(*i).filter(|n| **n > 0));
    }
    let unknown = of_model.iter().any(|i| marks.get(*i).is_some_and(|m| m.model.is_none()));
    let mut list: Vec<(usize, CallGroup)> = groups.into_iter().collect();
    order::by_key(&mut list, |(graph, g)| (order::time(g.from), *graph as u64));
    let alternate = list.windows(2).any(|w| matches!(w, [a, b] if b.1.from < a.1.to));
    let unlike = |a: &CallGroup, b: &CallGroup| {
        !a.sizes.is_empty() && !b.sizes.is_empty() && a.sizes.is_disjoint(&b.sizes)
    };
    let shapes = unknown && list.windows(2).any(|w| matches!(w, [a, b] if unlike(&a.1, &b.1)));
    let few = list.len() <= CONTEXTS && list.len() * 2 <= of_model.len();
    if list.len() > 1 && (alternate || shapes) && few {
        return;
    }
    if list.len() > 1 && alternate {
        mixed.insert(pid, MANY);
    }
    for i in of_model {
        if let Some(mark) = marks.get_mut(*i) {
            mark.graph = None;
        }
    }
}

/// The run with the most calls, for each process.
fn most_calls(calls: &[Call], of_call: &[usize]) -> HashMap<u32, usize> {
    let mut counts: HashMap<(u32, usize), u64> = HashMap::new();
    for (call, run) in calls.iter().zip(of_call) {
        *counts.entry((call.pid, *run)).or_default() += 1;
    }
    let mut counts: Vec<((u32, usize), u64)> = counts.into_iter().collect();
    order::by_key(&mut counts, |((_, run), n)| (*n, !*run as u64));
    counts.into_iter().map(|((pid, run), _)| (pid, run)).collect()
}

/// The new index of each run: sorted by process, then by when it began.
fn sorted(keys: &[(u32, CallIdentity)], calls: &[Call], of_call: &[usize]) -> Vec<usize> {
    let mut began = vec![i64::MAX; keys.len()];
    for (call, run) in calls.iter().zip(of_call) {
        if let Some(t) = began.get_mut(*run) {
            *t = (*t).min(call.start);
        }
    }
    let mut order: Vec<usize> = (0..keys.len()).collect();
    let key = |i: &usize| {
        let pid = keys.get(*i).map_or(0, |(pid, _)| *pid);
        (u64::from(pid), began.get(*i).map_or(0, |t| order::time(*t)))
    };
    order::by_key(&mut order, key);
    let mut place = vec![0; keys.len()];
    for (to, from) in order.into_iter().enumerate() {
        if let Some(slot) = place.get_mut(from) {
            *slot = to;
        }
    }
    place
}

fn rows(
    loaded: &Loaded<'_>,
    line: &Timeline,
    keys: &[(u32, CallIdentity)],
    of_call: &[usize],
    of_cpu: &[usize],
    mixed: &HashMap<u32, &'static str>,
) -> Vec<RunRow> {
    let mut of_pid: HashMap<u32, u32> = HashMap::new();
    for (pid, _) in keys {
        *of_pid.entry(*pid).or_default() += 1;
    }
    let mut plans: Vec<HashSet<u32>> = vec![HashSet::new(); keys.len()];
    for (graph, run) in loaded.cpu_graphs.iter().zip(of_cpu) {
        if let (Some(plans), Some(plan)) = (plans.get_mut(*run), graph.plan) {
            plans.insert(plan);
        }
    }
    let mut sums = vec![RunTotals::default(); keys.len()];
    let mut verify: Vec<bool> = vec![false; keys.len()];
    for (i, (call, run)) in line.calls.iter().zip(of_call).enumerate() {
        if let Some(sum) = sums.get_mut(*run) {
            sum.add(call);
        }
        if let Some(verify) = verify.get_mut(*run).filter(|_| verifies(line, i)) {
            *verify = true;
        }
    }
    let mut number: HashMap<u32, u32> = HashMap::new();
    let drafted: HashSet<u32> = keys.iter().zip(&verify).filter(|(_, v)| **v).map(|(k, _)| k.0).collect();
    let row = |((((pid, mark), sum), plans), verify): ((Key<'_>, &HashSet<u32>), &bool)| {
        let several = of_pid.get(pid).is_some_and(|n| *n > 1);
        let n = number.entry(*pid).or_default();
        *n += 1;
        let process = loaded.processes.iter().find(|p| p.pid == *pid);
        let command = process.map(|p| if p.cmdline.is_empty() { p.exe } else { p.cmdline });
        let lost = (several && mark.model.is_none() && mark.graph.is_none()).then_some(NO_WEIGHTS);
        RunRow {
            pid: *pid,
            context: several.then_some(*n),
            command: command.map(redact::line).unwrap_or_default(),
            model: model_of(loaded, hits(loaded, plans)),
            calls: sum.calls,
            tokens: sum.tokens,
            prefill_tokens_per_s: sum.rate(Phase::Prefill),
            decode_tokens_per_s: sum.rate(Phase::Decode),
            in_call_ns: sum.by_phase.iter().fold(0, |a, (_, ns)| a.saturating_add(*ns)),
            shown: false,
            draft: !verify && drafted.contains(pid),
            mixed: lost.or(mixed.get(pid).copied()),
        }
    };
    keys.iter().zip(&sums).zip(&plans).zip(&verify).map(row).collect()
}

/// A run's identity and totals.
type Key<'a> = (&'a (u32, CallIdentity), &'a RunTotals);

/// Whether a call verifies a draft.
fn verifies(line: &Timeline, call: usize) -> bool {
    let work = line.sequences.as_ref().and_then(|s| s.works.get(call)?.as_ref());
    work.is_some_and(|w| w.chunks.iter().any(|c| c.1 == ChunkWork::Verify))
}

/// Tensors that the plans compute, ascending.
fn hits(loaded: &Loaded<'_>, plans: &HashSet<u32>) -> Vec<u32> {
    let plans = plans.iter().filter_map(|plan| loaded.plans.get(plan));
    let ids: HashSet<u32> =
        plans.flat_map(|p| &p.hits).flat_map(|(first, second)| [Some(*first), *second]).flatten().collect();
    let mut ids: Vec<u32> = ids.into_iter().collect();
    ids.sort_unstable();
    ids
}

/// Calls of a run.
#[derive(Clone)]
struct RunTotals {
    calls: u64,
    tokens: Option<u64>,
    /// By [`Phase`]: tokens, if all are known, and time in calls.
    by_phase: [(Option<u64>, u64); 3],
}

impl Default for RunTotals {
    fn default() -> RunTotals {
        RunTotals { calls: 0, tokens: Some(0), by_phase: [(Some(0), 0); 3] }
    }
}

impl RunTotals {
    fn add(&mut self, call: &Call) {
        self.calls += 1;
        if call.cut {
            return;
        }
        let more = |sum: Option<u64>| sum.zip(call.tokens).and_then(|(a, b)| a.checked_add(b));
        self.tokens = more(self.tokens);
        let (tokens, ns) = &mut self.by_phase[call.phase as usize];
        *tokens = more(*tokens);
        *ns = ns.saturating_add(call.dur);
    }

    fn rate(&self, phase: Phase) -> Option<f64> {
        let (tokens, ns) = self.by_phase[phase as usize];
        tokens.filter(|_| ns > 0).map(|n| n as f64 * 1e9 / ns as f64)
    }
}

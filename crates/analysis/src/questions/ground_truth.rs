//! Reads an engine's own log of its times (docs/GROUND_TRUTH.md).
//!
//! The file is untrusted: any deviation from the format is an error with the line number, and no field is kept
//! unless the file contains it explicitly.

use std::io::BufRead;
use std::str::FromStr;

use common::order;

/// First bytes of a file.
const MAGIC: &str = "# ggml-runner ground truth ";
/// The supported version.
const VERSION: &str = "1";
/// Maximum line length, in bytes.
const MAX_LINE: u64 = 4096;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TruthError {
    #[error("it cannot be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("it is not a ground truth file; `ggml-runner run --ground-truth` writes one")]
    NotTruth,
    #[error("it has version {0}; this program reads version {VERSION}")]
    Version(String),
    #[error("line {line}: {what}")]
    Line { line: u64, what: &'static str },
}

/// A node of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TruthNode {
    /// Address of its tensor.
    pub address: u64,
    pub op: Box<str>,
    pub name: Box<str>,
}

/// A call or graph, times in ns of CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TruthSpan {
    pub tid: u32,
    /// Tokens of a call, nodes of a graph, threads of a CPU graph.
    pub size: u32,
    pub start: u64,
    pub end: u64,
}

/// A call of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TruthCall {
    pub span: TruthSpan,
    /// Made before the measurement.
    pub warm_up: bool,
}

/// A part of a graph run by the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TruthCpuGraph {
    pub id: u32,
    /// Index in [`GroundTruth::tables`].
    pub table: u32,
    pub span: TruthSpan,
}

/// An op on one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TruthOp {
    /// `id` of a CPU graph.
    pub graph: u32,
    pub ith: u32,
    /// Index in the graph's node table.
    pub node: u32,
    pub start: u64,
    pub end: u64,
}

/// The experts that a node used for a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TruthExperts {
    /// `id` of a CPU graph.
    pub graph: u32,
    /// Index in the graph's node table.
    pub node: u32,
    /// Index in the graph's batch.
    pub token: u32,
    pub ids: Box<[i32]>,
}

/// The contents of a file, each list in time order (ops by graph, thread and start).
#[derive(Debug, Default)]
pub struct GroundTruth {
    pub pid: u32,
    /// Cost of one read of the clock, ns.
    pub reading_ns: u64,
    /// Spans and ops that the engine dropped for lack of space.
    pub dropped: u64,
    pub tables: Vec<Vec<TruthNode>>,
    pub calls: Vec<TruthCall>,
    pub graphs: Vec<TruthSpan>,
    pub cpu_graphs: Vec<TruthCpuGraph>,
    pub ops: Vec<TruthOp>,
    /// In file order.
    pub experts: Vec<TruthExperts>,
}

/// The fields of a line, consumed one by one.
struct LineFields<'a> {
    line: u64,
    rest: std::str::Split<'a, char>,
}

impl<'a> LineFields<'a> {
    fn wrong(&self, what: &'static str) -> TruthError {
        TruthError::Line { line: self.line, what }
    }

    fn text(&mut self) -> Result<&'a str, TruthError> {
        self.rest.next().ok_or_else(|| self.wrong("it has too few fields"))
    }

    fn number<T: FromStr>(&mut self) -> Result<T, TruthError> {
        self.text()?.parse().map_err(|_| self.wrong("a number was expected"))
    }

    fn hex(&mut self) -> Result<u64, TruthError> {
        u64::from_str_radix(self.text()?, 16).map_err(|_| self.wrong("a hexadecimal number was expected"))
    }

    fn times(&mut self) -> Result<(u64, u64), TruthError> {
        let (start, end) = (self.number()?, self.number()?);
        if start > end {
            return Err(self.wrong("it ends before it starts"));
        }
        Ok((start, end))
    }
}

/// Reads a file.
pub fn read(mut input: impl BufRead) -> Result<GroundTruth, TruthError> {
    let mut truth = GroundTruth::default();
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        number += 1;
        let wrong = |what| TruthError::Line { line: number, what };
        let n = std::io::Read::take(&mut input, MAX_LINE).read_until(b'\n', &mut line)?;
        if number == 1 {
            head(&line)?;
        }
        if n == 0 {
            break;
        }
        if line.pop() != Some(b'\n') {
            return Err(wrong(if n as u64 == MAX_LINE { "it is too long" } else { "the file is cut short" }));
        }
        let text = std::str::from_utf8(&line).map_err(|_| wrong("it is not UTF-8"))?;
        if !text.starts_with('#') && !text.is_empty() {
            truth.line(LineFields { line: number, rest: text.split('\t') })?;
        }
    }
    order::by_key(&mut truth.calls, |c| (c.span.start, 0));
    order::by_key(&mut truth.graphs, |s| (s.start, 0));
    order::by_key(&mut truth.cpu_graphs, |g| (g.span.start, 0));
    order::by_key(&mut truth.ops, |o| (o.ith.into(), o.start));
    order::by_key(&mut truth.ops, |o| (o.graph.into(), 0));
    Ok(truth)
}

fn head(line: &[u8]) -> Result<(), TruthError> {
    let text = std::str::from_utf8(line).map_err(|_| TruthError::NotTruth)?;
    let version = text.trim_end().strip_prefix(MAGIC).ok_or(TruthError::NotTruth)?;
    if version == VERSION {
        return Ok(());
    }
    let shown: String = version.chars().filter(|c| !c.is_control()).take(16).collect();
    Err(TruthError::Version(shown))
}

impl GroundTruth {
    fn line(&mut self, mut f: LineFields<'_>) -> Result<(), TruthError> {
        match f.text()? {
            "process" => self.pid = f.number()?,
            "reading" => self.reading_ns = f.number()?,
            "dropped" => self.dropped = f.number()?,
            "node" => self.node(&mut f)?,
            kind @ ("call" | "warm-up") => {
                let _id: u32 = f.number()?;
                let span = span(&mut f)?;
                self.calls.push(TruthCall { span, warm_up: kind == "warm-up" });
            }
            "graph" => {
                let _id: u32 = f.number()?;
                let _call = f.text()?;
                self.graphs.push(span(&mut f)?);
            }
            "cpu-graph" => {
                let id = f.number()?;
                if self.cpu_graphs.last().is_some_and(|g| g.id >= id) {
                    return Err(f.wrong("ids of CPU graphs must increase"));
                }
                let _graph = f.text()?;
                let (tid, size, table) = (f.number()?, f.number()?, f.number()?);
                let (start, end) = f.times()?;
                self.cpu_graphs.push(TruthCpuGraph { id, table, span: TruthSpan { tid, size, start, end } });
            }
            "op" => {
                let (graph, ith, _tid, node) = (f.number()?, f.number()?, f.number::<u32>()?, f.number()?);
                let (start, end) = f.times()?;
                self.ops.push(TruthOp { graph, ith, node, start, end });
            }
            "experts" => {
                let (graph, node, token) = (f.number()?, f.number()?, f.number()?);
                let ids = f.text()?.split(',').map(|id| id.parse()).collect::<Result<_, _>>();
                let ids = ids.map_err(|_| f.wrong("numbers joined by ',' were expected"))?;
                self.experts.push(TruthExperts { graph, node, token, ids });
            }
            // A later writer of this version may add lines.
            _ => {}
        }
        Ok(())
    }

    fn node(&mut self, f: &mut LineFields<'_>) -> Result<(), TruthError> {
        let (table, index): (usize, usize) = (f.number()?, f.number()?);
        let node = TruthNode {
            address: f.hex()?,
            op: f.text()?.to_owned().into(),
            name: f.text()?.to_owned().into(),
        };
        if table == self.tables.len() {
            self.tables.push(Vec::new());
        }
        let Some(nodes) = self.tables.get_mut(table).filter(|t| t.len() == index) else {
            return Err(f.wrong("nodes must be numbered one after the other"));
        };
        nodes.push(node);
        Ok(())
    }

    /// The node that an op of this CPU graph ran.
    pub fn node_of(&self, graph: &TruthCpuGraph, node: u32) -> Option<&TruthNode> {
        self.tables.get(usize::try_from(graph.table).ok()?)?.get(usize::try_from(node).ok()?)
    }

    /// The ops of a CPU graph, by thread and start.
    pub fn ops_of(&self, graph: &TruthCpuGraph) -> &[TruthOp] {
        let from = self.ops.partition_point(|o| o.graph < graph.id);
        let to = self.ops.partition_point(|o| o.graph <= graph.id);
        self.ops.get(from..to).unwrap_or_default()
    }
}

fn span(f: &mut LineFields<'_>) -> Result<TruthSpan, TruthError> {
    let (tid, size) = (f.number()?, f.number()?);
    let (start, end) = f.times()?;
    Ok(TruthSpan { tid, size, start, end })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "# ggml-runner ground truth 1\nprocess\t7\nreading\t25\ndropped\t0\n\
                        node\t0\t0\tff00\tMUL_MAT\tQcur-0\ncall\t0\t7\t8\t100\t900\ngraph\t1\t0\t7\t1\t110\t890\n\
                        cpu-graph\t2\t1\t7\t2\t0\t120\t880\nop\t2\t1\t8\t0\t140\t600\nop\t2\t0\t7\t0\t130\t500\nexperts\t2\t0\t0\t7,3\n";

    #[test]
    fn a_file_is_read_whole() {
        let t = read(GOOD.as_bytes()).expect("a good file");
        assert_eq!((t.pid, t.reading_ns, t.calls.len(), t.graphs.len()), (7, 25, 1, 1));
        let graph = t.cpu_graphs[0];
        assert_eq!(t.ops_of(&graph).iter().map(|o| (o.ith, o.end)).collect::<Vec<_>>(), [(0, 500), (1, 600)]);
        assert_eq!((t.experts[0].token, &*t.experts[0].ids), (0, &[7, 3][..]));
        let node = t.node_of(&graph, 0).expect("a node");
        assert_eq!((node.address, &*node.op, &*node.name), (0xff00, "MUL_MAT", "Qcur-0"));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let error = |text: &str| read(text.as_bytes()).expect_err("a bad file").to_string();
        assert!(error("").contains("not a ground truth file"));
        assert!(error("call\t1\n").contains("not a ground truth file"));
        assert!(error("# ggml-runner ground truth 9\n").contains("version 9"));
        let with = |line: &str| error(&format!("{MAGIC}{VERSION}\n{line}\n"));
        assert_eq!(with("call\t0\t1\t1\t5"), "line 2: it has too few fields");
        assert_eq!(with("call\t0\t1\t1\t5\tx"), "line 2: a number was expected");
        assert_eq!(with("call\t0\t1\t1\t5\t4"), "line 2: it ends before it starts");
        assert_eq!(with("experts\t0\t0\t0\t1,x"), "line 2: numbers joined by ',' were expected");
        assert_eq!(with("node\t0\t1\t0\tADD\tx"), "line 2: nodes must be numbered one after the other");
        assert_eq!(with(&"x".repeat(5000)), "line 2: it is too long");
        assert_eq!(error(&GOOD[..GOOD.len() - 1]), "line 11: the file is cut short");
    }

    proptest! {
        #[test]
        fn no_file_brings_it_down(at in 0..GOOD.len(), byte in any::<u8>(), cut in 0..GOOD.len()) {
            let mut bytes = GOOD.as_bytes().to_vec();
            bytes[at] = byte;
            bytes.truncate(cut);
            let _ = read(bytes.as_slice());
        }
    }
}

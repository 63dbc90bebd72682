//! The time of a call of a model, from the times of a recording: its products one by one, attention by context, all
//! other ops by layer, and what a call takes besides.

use std::collections::BTreeSet;

use super::BasisPart;
use super::products::{Estimate, Multiplied, Origin, estimate};
use super::recorded::{PhaseTimes, Recorded};
use crate::questions::advice::Confidence;
use crate::sums::attribution::verdict::{Ceiling, Peak};
use common::order;
use ggml::model_shape::{ModelShape, WeightProduct};

/// A predicted call.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    pub time: Estimate,
    pub confidence: Confidence,
    /// Largest first.
    pub parts: Vec<BasisPart>,
}

/// Uncertainty of small ops and of the rest of a call, and of those of a model whose layers differ.
const SMALL: f64 = 0.1;
const OTHER_GRAPH: f64 = 0.5;
/// Of attention at a recorded context, and for each doubling beyond.
const ATTENTION: f64 = 0.1;
const FURTHER: f64 = 0.15;
/// Share of the time from another type from which the result is a guess.
const GUESSED: f64 = 0.05;
/// Half width of a range that still is a certain one.
const CERTAIN: f64 = 0.1;
/// Fewest tokens of a recorded prompt that serve for others.
const LEAST_PROMPT: u64 = 16;
/// Share of the recorder from which it is mentioned.
const NOTABLE: f64 = 0.05;
/// Times of one run differ from those of the next.
const RUNS: f64 = 0.03;

/// Predicts calls of one model from one recording.
pub struct Predictor<'p> {
    shape: &'p ModelShape,
    recorded: &'p Recorded,
    threads: u32,
    gb_per_s: Option<f64>,
    /// The recording's layers have the same ops.
    same_graph: bool,
}

impl<'p> Predictor<'p> {
    pub fn new(shape: &'p ModelShape, recorded: &'p Recorded, peak: Option<&Peak>, threads: u32) -> Self {
        // A rate that the recorded products exceed is not memory's.
        let fastest = recorded.decode.products.iter().map(|p| p.bytes() / p.ns.max(1.0)).fold(0.0, f64::max);
        let of_recording = Ceiling::given(&recorded.peaks, recorded.threads).map(|c| c.peak);
        let peak = if threads == recorded.threads { peak.copied().or(of_recording) } else { of_recording };
        Self {
            shape,
            recorded,
            threads,
            gb_per_s: peak.map(|p| p.gb_per_s).filter(|rate| *rate > fastest),
            same_graph: names(&shape.tensors) == names(&recorded.tensors),
        }
    }

    /// Decoding a token with this context.
    pub fn decode(&self, context: u64) -> Prediction {
        let times = &self.recorded.decode;
        let mut sum = Sum::default();
        for p in &self.shape.products {
            self.product(&mut sum, p, times, 1, p.count as f64);
        }
        sum.add("attention", self.attention(times, context), Origin::Measured);
        self.others(&mut sum, times, 1.0);
        self.finish(sum, times)
    }

    /// A prompt, in batches; `None` if no prompt was recorded that is long enough.
    pub fn prompt(&self, tokens: u64, ubatch: u64) -> Option<Prediction> {
        let times = self.recorded.prefill.as_ref().filter(|p| p.tokens >= LEAST_PROMPT)?;
        let ubatch = ubatch.max(1);
        let (full, left) = (tokens / ubatch, tokens % ubatch);
        let mut sum = Sum::default();
        for (columns, times_run) in [(ubatch, full), (left, u64::from(left > 0))] {
            if times_run > 0 {
                self.batch(&mut sum, times, columns, times_run as f64, (full, left));
            }
        }
        let attention = self.prompt_attention(times, tokens);
        sum.add("attention", attention, Origin::Measured);
        Some(self.finish(sum, times))
    }

    fn batch(&self, sum: &mut Sum, times: &PhaseTimes, columns: u64, n: f64, (full, left): (u64, u64)) {
        // Logits are wanted of the last token only, so in the last layer all after attention is for one token.
        let last = if columns == left || left == 0 { 1.0 } else { 0.0 };
        for p in &self.shape.products {
            if p.head {
                self.product(sum, p, &self.recorded.decode, 1, last);
                continue;
            }
            let single = if p.name.starts_with("blk.{L}.ffn_") { last } else { 0.0 };
            self.product(sum, p, times, columns, p.count as f64 * n - single);
            self.product(sum, p, &self.recorded.decode, 1, single);
        }
        debug_assert!(full > 0 || left > 0);
        let share = columns as f64 / times.tokens.max(1) as f64;
        self.others(sum, times, share * n);
    }

    fn product(&self, sum: &mut Sum, p: &WeightProduct, times: &PhaseTimes, columns: u64, n: f64) {
        if n <= 0.0 {
            return;
        }
        let how = Multiplied { columns, gb_per_s: self.gb_per_s };
        match estimate(p, &times.products, how) {
            Some(found) => {
                if found.origin == Origin::OtherType {
                    sum.types.insert((p.ty.name, found.from.name));
                }
                sum.add(&p.name, found.time.times(n), found.origin);
            }
            None => sum.unknown = true,
        }
    }

    /// Ratio of this model's layers to the recording's.
    fn layers(&self) -> f64 {
        match self.recorded.layers {
            0 => 1.0,
            n => self.shape.layers as f64 / n as f64,
        }
    }

    fn attention(&self, times: &PhaseTimes, context: u64) -> Estimate {
        let a = &times.attention;
        let size = self.attention_size(a.width);
        let [from, middle, to] = a.contexts;
        let context = self.shape.attended(context as f64);
        let Some(slope) = a.slope.filter(|_| middle > 0.0) else {
            // How it grows is not known: between not at all and in proportion.
            let most = if middle > 0.0 { (context / middle).max(1.0) } else { 1.0 };
            let (least, most) = (a.ns.min(a.ns * most), a.ns * most);
            return Estimate { ns: (least * most).sqrt(), least: least * 0.8, most: most * 1.2 }.times(size);
        };
        let ns = (a.ns + slope * (context - middle)).max(a.ns * 0.1);
        let beyond = if context > to { context / to } else { from / context.max(1.0) };
        Estimate::within(ns, ATTENTION + FURTHER * beyond.log2().max(0.0)).times(size)
    }

    /// The queries of this model, in units of the recording's.
    fn attention_size(&self, recorded: f64) -> f64 {
        let a = &self.shape.attention;
        let own = a.heads as f64 * a.key as f64 * self.shape.layers as f64;
        if recorded > 0.0 { own / recorded } else { self.layers() }
    }

    /// Scores of a prompt grow with the square of its length; a part does not.
    fn prompt_attention(&self, times: &PhaseTimes, tokens: u64) -> Estimate {
        let a = &times.attention;
        let ratio = tokens as f64 / times.tokens.max(1) as f64;
        let (linear, square) = (a.ns * ratio, a.ns * ratio * ratio);
        let (least, most) = (linear.min(square), linear.max(square));
        let size = self.attention_size(a.width);
        Estimate { ns: (least * most).sqrt(), least: least * 0.9, most: most * 1.1 }.times(size)
    }

    /// All ops that are neither products nor attention, and the rest of a call. `n`: calls of the recorded width.
    fn others(&self, sum: &mut Sum, times: &PhaseTimes, n: f64) {
        let width = match self.recorded.embd {
            0 => 1.0,
            embd => self.shape.embd as f64 / embd as f64,
        };
        let share = if self.same_graph { SMALL } else { OTHER_GRAPH };
        // Between the cost of an op and that of its elements.
        let small = |ns: f64| {
            let (least, most) = (ns.min(ns * width), ns.max(ns * width));
            Estimate { ns: (least * most).sqrt(), least: least * (1.0 - share), most: most * (1.0 + share) }
        };
        let origin = if self.same_graph { Origin::Measured } else { Origin::Scaled };
        sum.add("other ops of layers", small(times.layer_ops_ns).times(self.layers() * n), origin);
        sum.add("other ops", small(times.other_ops_ns).times(n), origin);
        sum.add("outside of ops", Estimate::within(times.rest_ns, 0.3).times(n), Origin::Measured);
    }

    fn finish(&self, mut sum: Sum, times: &PhaseTimes) -> Prediction {
        // What the recorder cost is an estimate, too.
        let spread = (RUNS + times.spread + times.recorder / 2.0).min(0.3);
        let mut time = sum.total;
        time.least *= 1.0 - spread;
        time.most *= 1.0 + spread;
        let width = (time.most - time.least) / 2.0 / time.ns.max(1.0);
        let guessed = sum.of(Origin::OtherType) > GUESSED || sum.unknown;
        let mut confidence = if guessed {
            Confidence::Low
        } else if width > CERTAIN || !self.same_graph {
            Confidence::Medium
        } else {
            Confidence::High
        };
        if self.threads != self.recorded.threads {
            confidence = Confidence::Low;
            time = other_threads(time, self.recorded.threads, self.threads);
        }
        order::by_key(&mut sum.parts, |p| (!order::fraction(p.ns), 0));
        Prediction { time, confidence, parts: sum.parts }
    }

    /// What makes the prediction less certain, in words.
    pub fn notes(&self) -> Vec<String> {
        let mut out = Vec::new();
        let mut sum = Sum::default();
        for p in &self.shape.products {
            self.product(&mut sum, p, &self.recorded.decode, 1, 1.0);
        }
        for (wanted, from) in &sum.types {
            out.push(format!(
                "the recording has no {wanted} product: its times are derived from {from}, with a wider range; a \
                 recording of any model in {wanted} makes it certain"
            ));
        }
        if !self.same_graph {
            out.push(
                "the layers of this model differ from the recorded ones: small ops are uncertain".into(),
            );
        }
        let (own, recorded) = (self.threads, self.recorded.threads);
        if own != recorded {
            out.push(format!(
                "the recording ran with {recorded} threads: for {own}, the range is from no gain to a perfect one"
            ));
        }
        let recorder = self.recorded.decode.recorder;
        if recorder > NOTABLE {
            out.push(format!(
                "the recorder took about {:.0} % of the recorded time, which is taken out: a recording of a larger model is \
                 more certain",
                recorder * 100.0
            ));
        }
        match &self.recorded.prefill {
            None => out.push("no prompt was recorded: there is no time to first token".into()),
            Some(p) if p.tokens < LEAST_PROMPT => out.push(format!(
                "the longest recorded prompt has {} tokens, fewer than {LEAST_PROMPT}: there is no time to first token",
                p.tokens
            )),
            Some(_) => {}
        }
        out
    }
}

/// More threads gain between nothing and all; fewer lose so.
fn other_threads(time: Estimate, from: u32, to: u32) -> Estimate {
    let ratio = f64::from(from.max(1)) / f64::from(to.max(1));
    let (least, most) = (time.least * ratio.min(1.0), time.most * ratio.max(1.0));
    Estimate { ns: (least * most).sqrt(), least, most }
}

/// Names by which layers are compared: those of layers, without factors that no op has as a weight.
fn names(all: &BTreeSet<String>) -> BTreeSet<&str> {
    let of_layer = |name: &&String| name.starts_with("blk.{L}.") && !name.contains("rope_freqs");
    all.iter().filter(of_layer).map(String::as_str).collect()
}

/// A sum of estimates.
#[derive(Default)]
struct Sum {
    total: Estimate,
    parts: Vec<BasisPart>,
    /// Types that the recording lacks, and those that serve instead.
    types: BTreeSet<(&'static str, &'static str)>,
    /// A product has no estimate.
    unknown: bool,
}

impl Sum {
    fn add(&mut self, what: &str, time: Estimate, origin: Origin) {
        if time.ns <= 0.0 {
            return;
        }
        self.total = self.total.plus(time);
        let from = origin.name();
        match self.parts.iter_mut().find(|p| p.what == what && p.from == from) {
            Some(part) => part.ns += time.ns,
            None => self.parts.push(BasisPart { what: what.to_owned(), ns: time.ns, from }),
        }
    }

    /// Share of the time with this origin.
    fn of(&self, origin: Origin) -> f64 {
        let ns: f64 = self.parts.iter().filter(|p| p.from == origin.name()).map(|p| p.ns).sum();
        ns / self.total.ns.max(1.0)
    }
}

//! Slows down selected ops on purpose, so that comparisons of runs have a known difference to find.

use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::abi::GgmlTensor;
use ggml::names::fold;

/// Which ops take longer, and by which share of their time.
#[derive(Debug, Clone, PartialEq)]
pub struct Slow {
    /// Name of an op (`MUL_MAT`), of a tensor (`ffn_up-3`), or of that tensor in all layers (`ffn_up-{L}`).
    pub name: String,
    pub share: f32,
}

impl FromStr for Slow {
    type Err = &'static str;

    /// Parses `ffn_up-{L}:5%`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = "expected NAME:PERCENT%, e.g. ffn_up-{L}:5%";
        let (name, share) = text.rsplit_once(':').filter(|(name, _)| !name.is_empty()).ok_or(wanted)?;
        let percent = share.strip_suffix('%').and_then(|p| p.trim().parse::<f32>().ok());
        let percent = percent.filter(|p| (0.0..=1000.0).contains(p)).ok_or(wanted)?;
        Ok(Slow { name: name.into(), share: percent / 100.0 })
    }
}

impl Slow {
    /// Whether this node is selected.
    pub fn means(&self, node: &GgmlTensor) -> bool {
        let name = node.name();
        self.name == node.op.name() || self.name == name || self.name == fold(name).pattern
    }
}

/// An op in progress.
pub(super) struct Drag {
    began: Option<Instant>,
    share: f32,
}

impl Drag {
    /// Begins an op that is to be slowed down by this share; does nothing for 0.
    #[inline]
    pub(super) fn begin(share: f32) -> Drag {
        Drag { began: (share > 0.0).then(Instant::now), share }
    }

    /// Ends it once it has taken long enough.
    #[inline]
    pub(super) fn end(self) {
        if let Some(began) = self.began {
            wait(began, self.share);
        }
    }
}

/// Busy-waits for that share of the time since `began`.
#[cold]
fn wait(began: Instant, share: f32) {
    let took = began.elapsed();
    let until = took.saturating_add(Duration::from_secs_f64(took.as_secs_f64() * f64::from(share)));
    while began.elapsed() < until {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Op;

    #[test]
    fn a_name_is_of_an_op_a_tensor_or_that_tensor_in_all_layers() {
        let mut node = GgmlTensor { op: Op::MUL_MAT, ..GgmlTensor::EMPTY };
        node.set_name("ffn_up-3");
        let means = |text: &str| text.parse::<Slow>().map(|s| s.means(&node));
        for meant in ["MUL_MAT:5%", "ffn_up-3:0.5 %", "ffn_up-{L}:100%"] {
            assert_eq!(means(meant), Ok(true), "{meant}");
        }
        assert_eq!((means("ffn_up-2:5%"), means("MUL:5%")), (Ok(false), Ok(false)));
        for wrong in ["", "x", "x:5", ":5%", "x:-1%", "x:nan%", "x:1001%"] {
            assert!(means(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_op_takes_longer_by_its_share() {
        let drag = Drag::begin(0.5);
        // Read after the op has begun: whatever comes between makes it longer, never shorter.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(2) {}
        drag.end();
        assert!(began.elapsed() >= Duration::from_millis(3));
    }
}

//! The machine's peaks, as given by `--peak`.

use std::fs;

use serde_json::Value;

use analysis::sums::attribution::verdict::Peak;
use common::machine_peaks::{MachinePeak, rates};

/// `280,61` (GFLOP/s and GB/s), or the name of a file written by `profinfer doctor --peaks` or
/// `ggml-runner peak --json`.
///
/// # Errors
/// Neither; or the file does not have that form.
pub fn read(text: &str) -> Result<Vec<Peak>, String> {
    if let Some((flops, bandwidth)) = text.split_once(',') {
        let positive = |t: &str| t.trim().parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
        if let (Some(flops), Some(gb_per_s)) = (positive(flops), positive(bandwidth)) {
            return Ok(vec![Peak { gb_per_s, gflop_per_s: Some(flops), ..Peak::default() }]);
        }
    }
    let bytes = fs::read(text).map_err(|e| {
        format!("{e}; expected GFLOP/s and GB/s, e.g. 280,61, or a file written by `profinfer doctor --peaks` or `ggml-runner peak --json`")
    })?;
    let json: Value = serde_json::from_slice(&bytes).map_err(|e| format!("not JSON: {e}"))?;
    peaks(&json)
        .ok_or_else(|| "not written by `profinfer doctor --peaks` or `ggml-runner peak --json`".into())
}

/// The peaks of all cores together; on a machine with equal cores, those of its cluster.
fn peaks(json: &Value) -> Option<Vec<Peak>> {
    of_rows(&rates(json)?)
}

/// The same of rows that were read already; `None` if there are none.
pub fn of_rows(rows: &[MachinePeak]) -> Option<Vec<Peak>> {
    let cluster = &rows.iter().find(|p| p.cluster == "all").or(rows.first())?.cluster;
    let giga = |mega: u64| mega as f64 / 1e3;
    let peak = |p: &MachinePeak| Peak {
        threads: Some(p.threads),
        gb_per_s: giga(p.read),
        gflop_per_s: p.f32.map(giga),
        int8_gop_per_s: p.int8.map(giga),
    };
    Some(rows.iter().filter(|p| p.cluster == *cluster).map(peak).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner::peak::{ClusterPeaks, MachinePeaks, Peaks};

    #[test]
    fn two_numbers_are_gflops_and_bandwidth() {
        let [one] = read("280, 61.5").unwrap()[..] else { panic!() };
        assert_eq!((one.threads, one.gflop_per_s, one.gb_per_s), (None, Some(280.0), 61.5));
        for wrong in ["280", "280,0", "a,b", "-1,5", "inf,5", "1,2,3", ""] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_file_of_the_runner_is_read_as_it_writes_it() {
        let peaks = |threads: usize, read| Peaks {
            threads,
            read,
            f32_fma: Some(100.0),
            int8_dot: Some(200.0),
            int8_widening: Some(150.0),
            ..Peaks::default()
        };
        let cluster = |name: &str, peaks| ClusterPeaks { name: name.into(), cpus: vec![0, 1], peaks };
        let clusters = vec![
            cluster("little", vec![peaks(1, 5.0)]),
            cluster("all", vec![peaks(1, 10.0), peaks(2, 19.0)]),
        ];
        let machine = MachinePeaks { isa: "neon".into(), clusters };
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), serde_json::to_vec(&machine).unwrap()).unwrap();
        let got = read(file.path().to_str().unwrap()).unwrap();
        let got: Vec<_> = got.iter().map(|p| (p.threads, p.gb_per_s, p.int8_gop_per_s)).collect();
        assert_eq!(got, [(Some(1), 10.0, Some(200.0)), (Some(2), 19.0, Some(200.0))]);
        fs::write(file.path(), "{}").unwrap();
        assert!(read(file.path().to_str().unwrap()).unwrap_err().contains("not written by"));
    }
}

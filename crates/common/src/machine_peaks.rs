//! The file that `profinfer doctor --peaks` and `ggml-runner peak --json` write, as rows.

use serde_json::Value;

/// Maximum number of rows.
const MOST: usize = 512;

/// Peak rates of a cluster of cores with a number of threads, in 10^6 per second (`pfi::record::Peaks`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachinePeak {
    pub cluster: String,
    pub cpus: String,
    pub threads: u32,
    /// Seconds since 1970; 0 if the file does not say.
    pub measured_s: u64,
    pub read: u64,
    pub read_small_pages: Option<u64>,
    pub triad: Option<u64>,
    pub f32: Option<u64>,
    pub int8: Option<u64>,
    pub isa: String,
}

/// The rates in a file of `profinfer doctor --peaks`, or of `ggml-runner peak --json`. None: it is none.
pub fn rates(json: &Value) -> Option<Vec<MachinePeak>> {
    let measured_s = json.get("measured_s").and_then(Value::as_u64).unwrap_or(0);
    let isa = json.get("isa").and_then(Value::as_str).map(crate::plain::clean).unwrap_or_default();
    let mut all = Vec::new();
    for cluster in json.get("clusters")?.as_array()? {
        let name = cluster.get("name")?.as_str()?;
        let cpus: Vec<u32> = cluster
            .get("cpus")?
            .as_array()?
            .iter()
            .map(|n| n.as_u64()?.try_into().ok())
            .collect::<Option<_>>()?;
        for p in cluster.get("peaks")?.as_array()? {
            let mega = |name: &str| p.get(name)?.as_f64().map(|giga| (giga * 1e3) as u64).filter(|n| *n > 0);
            let cpus = crate::cpus::ranges(cpus.iter().copied());
            all.push(MachinePeak {
                cluster: crate::plain::clean(name),
                cpus,
                threads: u32::try_from(p.get("threads")?.as_u64()?).ok()?,
                measured_s,
                read: mega("read")?,
                read_small_pages: mega("read_small_pages"),
                triad: mega("triad"),
                f32: mega("f32_fma"),
                int8: ["int8_dot", "int8_matrix", "int8_widening"].into_iter().filter_map(mega).max(),
                isa: isa.clone(),
            });
        }
    }
    (!all.is_empty() && all.len() <= MOST).then_some(all)
}

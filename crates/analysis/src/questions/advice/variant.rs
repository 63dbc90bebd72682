//! A CPU backend that does not use what the processor has.

use super::rule::{Advice, Confidence, RuleInput};

/// Variants of the CPU backend (GGML_CPU_ALL_VARIANTS in ggml/src/CMakeLists.txt, b11669) from the poorest to the
/// richest, by what the measured peak of the machine must have used for the variant to be too poor.
const POORER: [(&str, &[&str]); 4] = [
    ("x64", &["avx2", "avx512", "amx"]),
    ("sse42", &["avx2", "avx512", "amx"]),
    ("sandybridge", &["avx2", "avx512", "amx"]),
    ("haswell", &["avx512vnni", "avx512-vnni", "amx"]),
];

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let isa = r.facts.isa?;
    let modules = r.facts.report.run.engines.iter().flat_map(|e| &e.modules);
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let cpu = modules.map(|m| name(&m.path)).find(|n| n.starts_with("libggml-cpu-"))?;
    let variant = cpu.strip_prefix("libggml-cpu-")?.split('.').next()?;
    let (_, better) = POORER.iter().find(|(poor, _)| *poor == variant)?;
    let found = better.iter().find(|b| isa.contains(**b))?;
    Some(Advice {
        rule: "cpu-variant",
        title: format!("use a CPU backend with {found}: the engine runs the variant {variant}"),
        actions: vec![
            format!("install the other libggml-cpu-*.so beside {cpu}: the engine picks the best"),
            "or build with -DGGML_NATIVE=ON on this machine; check that no GGML_BACKEND_PATH forces one"
                .into(),
        ],
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!("{cpu} was loaded; this processor has {isa}"),
        disproof: "with the better variant, a token takes as long as before".into(),
        trade_off: None,
    })
}

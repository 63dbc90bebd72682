//! `stat` on a recording of ggml-runner: ops that grow with the context, compared with the engine's actual context.

use crate::common;

use common::run::{profinfer, record};
use common::{live, model, runner};

#[test]
fn attention_is_what_grows_with_the_context() {
    let _turn = live!();
    let (program, model) = (runner(), model("tiny", "q4_0"));
    let (program, model) = (program.to_str().expect("a path"), model.to_str().expect("a path"));
    let run =
        record(&["--", program, "run", "--no-roofline", "-m", model, "-t", "1", "-p", "8", "-n", "600"]);
    assert!(run.status.success(), "{}", run.stderr);
    let out = profinfer().args(["stat", "--json"]).arg(&run.trace).output().expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let d: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let tokens = &d["tokens"];
    // The warm-up has 8 and 1; the engine has discarded them when the run starts, which has 8 and 600.
    assert_eq!((tokens["from"].as_u64(), tokens["to"].as_u64()), (Some(9), Some(608)), "{tokens:#}");
    let first = &tokens["ops"][0];
    assert!(first["name"].as_str().is_some_and(|n| n.starts_with("FLASH_ATTN_EXT")), "{tokens:#}");
    assert_eq!(first["grows"], true, "{tokens:#}");
    assert!(d["ops"]["bytes"]["points"].as_u64() >= Some(3), "{d:#}");
}

//! Replaces layer numbers in tensor names with a placeholder, so that the same op counts as one across layers.
//!
//! Where the numbers are:
//! - `Qcur-3`: llama.cpp's graph builder appends `-LAYER` to the names it gives (`llm_graph_context::cb`),
//! - `blk.3.attn_q.weight`, `enc.blk.3.…`, `v.blk.3.…`: weights in GGUF files,
//! - `cache_k_l3`: the key, value and state caches,
//! - `node_57`, `leaf_4`: GGML's names for unnamed tensors (ggml_build_forward_expand); these count nodes.
//!
//! GGML may then append ` (view)`, ` (reshaped)` or ` (copy of …)` to a name, and its scheduler turns it into
//! `BACKEND#name#copy`; so a number may be followed by the end, a space, `#` or `)`.

use std::borrow::Cow;

/// Placeholder for the layer number in a pattern.
const LAYER: &str = "{L}";
/// Placeholder for a counter that is not a layer.
const COUNTER: &str = "{N}";

/// A name with its numbers replaced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Folded<'a> {
    /// The name with `{L}` for the layer and `{N}` for a node counter.
    pub pattern: Cow<'a, str>,
    /// The layer; the first one if there are several.
    pub layer: Option<u32>,
}

/// Replaces the numbers in `name`. Borrows if there are none; never fails.
pub fn fold(name: &str) -> Folded<'_> {
    let mut out = String::new();
    let mut layer = None;
    // `out` has `name` up to here.
    let mut done = 0;
    let mut at = 0;
    while let Some((start, end)) = next_number(name, at) {
        at = end;
        let (Some(before), Some(digits), Some(after)) =
            (name.get(..start), name.get(start..end), name.get(end..))
        else {
            break;
        };
        let (Some(stand_in), Ok(number)) = (stand_in(before, after), digits.parse::<u32>()) else { continue };
        out.push_str(name.get(done..start).unwrap_or_default());
        out.push_str(stand_in);
        if stand_in == LAYER {
            layer = layer.or(Some(number));
        }
        done = end;
    }
    if done == 0 {
        return Folded { pattern: Cow::Borrowed(name), layer: None };
    }
    out.push_str(name.get(done..).unwrap_or_default());
    Folded { pattern: Cow::Owned(out), layer }
}

/// The next run of digits from `at` on, as byte positions.
fn next_number(name: &str, at: usize) -> Option<(usize, usize)> {
    let rest = name.get(at..)?;
    let start = at + rest.find(|c: char| c.is_ascii_digit())?;
    let len = name.get(start..)?.bytes().take_while(u8::is_ascii_digit).count();
    Some((start, start + len))
}

/// The placeholder for the number between `before` and `after`; `None` if it is part of the name itself.
fn stand_in(before: &str, after: &str) -> Option<&'static str> {
    if before.ends_with('-') && before.len() > 1 && closes(after) {
        return Some(LAYER);
    }
    if let Some(rest) = before.strip_suffix("blk.") {
        return (opens(rest) && after.starts_with('.')).then_some(LAYER);
    }
    if let Some(rest) = before.strip_suffix("node_").or_else(|| before.strip_suffix("leaf_")) {
        return (opens(rest) && closes(after)).then_some(COUNTER);
    }
    // `cache_k_l`, `cache_v_l`, `cache_r_l`, `cache_s_l`, and any later ones.
    let kind = before.strip_suffix("_l")?.rsplit_once("cache_")?.1;
    (!kind.is_empty() && kind.bytes().all(|b| b.is_ascii_alphanumeric()) && closes(after)).then_some(LAYER)
}

/// Whether a name may begin after this text.
fn opens(before: &str) -> bool {
    before.is_empty() || before.ends_with(['.', '#', ' '])
}

/// Whether a name may end before this text.
fn closes(after: &str) -> bool {
    after.is_empty() || after.starts_with([' ', '#', ')'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_llama_cpp() {
        let table = [
            ("Qcur-3", "Qcur-{L}", Some(3)),
            ("attn_norm-0", "attn_norm-{L}", Some(0)),
            ("attn_norm-0 (view)", "attn_norm-{L} (view)", Some(0)),
            ("Kcur-15 (reshaped) (permuted)", "Kcur-{L} (reshaped) (permuted)", Some(15)),
            ("ffn_moe_gate-12", "ffn_moe_gate-{L}", Some(12)),
            ("l_out-31", "l_out-{L}", Some(31)),
            ("blk.3.attn_q.weight", "blk.{L}.attn_q.weight", Some(3)),
            ("blk.10.ffn_down_exps.weight", "blk.{L}.ffn_down_exps.weight", Some(10)),
            ("enc.blk.7.attn_q.weight", "enc.blk.{L}.attn_q.weight", Some(7)),
            ("v.blk.23.ln1.weight", "v.blk.{L}.ln1.weight", Some(23)),
            ("blk.2.attn_q.weight (transposed)", "blk.{L}.attn_q.weight (transposed)", Some(2)),
            ("cache_k_l3", "cache_k_l{L}", Some(3)),
            ("cache_v_l11 (view)", "cache_v_l{L} (view)", Some(11)),
            ("cache_r_l2 (reshaped)", "cache_r_l{L} (reshaped)", Some(2)),
            ("cache_k_l3 (view) (copy of Kcur-3)", "cache_k_l{L} (view) (copy of Kcur-{L})", Some(3)),
            ("CUDA0#Qcur-3#0", "CUDA0#Qcur-{L}#0", Some(3)),
            ("CPU#blk.3.ffn_up.weight#1", "CPU#blk.{L}.ffn_up.weight#1", Some(3)),
            ("Vulkan0#node_5#0", "Vulkan0#node_{N}#0", None),
            ("node_57", "node_{N}", None),
            ("leaf_4", "leaf_{N}", None),
            ("node_57 (view)", "node_{N} (view)", None),
        ];
        for (name, pattern, layer) in table {
            let f = fold(name);
            assert_eq!((f.pattern.as_ref(), f.layer), (pattern, layer), "{name}");
        }
    }

    #[test]
    fn other_numbers_stay() {
        for name in [
            "",
            "result_output",
            "inp_embd",
            "token_embd.weight",
            "output_norm.weight",
            "rope_freqs.weight",
            "-3",
            "f16-kv-3x",
            "Qcur-",
            "my_node_57",
            "node_5x",
            "subblk.3.attn",
            "blk.3",
            "cache_k_lx",
            "cache__l3",
            "ln1.weight",
            "ggml-99999999999",
            "é-3é",
        ] {
            assert_eq!(fold(name), Folded { pattern: Cow::Borrowed(name), layer: None }, "{name}");
        }
    }

    proptest! {
        #[test]
        fn folding_never_panics_and_is_stable(name in "[a-z_.#() é0-9-]{0,40}") {
            let once = fold(&name);
            let again = fold(&once.pattern).pattern.into_owned();
            prop_assert_eq!(again, once.pattern.into_owned());
        }

        #[test]
        fn a_layer_comes_back(layer in any::<u32>()) {
            prop_assert_eq!(fold(&format!("Vcur-{layer}")).layer, Some(layer));
        }
    }
}

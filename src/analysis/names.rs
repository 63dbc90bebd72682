//! Tensor names as GGML programs choose them: where the layer number sits, and the pattern without it.
//! Uses nothing else of this crate.

/// A tensor name with its layer number taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folded {
    /// The name with `#` for the layer number (and for the counter of nameless tensors).
    pub pattern: String,
    /// The layer, where the name says one.
    pub layer: Option<u32>,
    /// True for `node_17` and `leaf_3`: GGML's own counters for tensors that nobody named.
    pub nameless: bool,
}

/// Folds `Qcur-3 (view)` to `Qcur-# (view)`, layer 3; `blk.3.attn_q.weight` to `blk.#.attn_q.weight`; `cache_k_l3` to
/// `cache_k_l#`; `node_17` to `node_#` without a layer. Every other name is left as it is.
pub fn fold(name: &str) -> Folded {
    for prefix in ["node_", "leaf_"] {
        if let Some(rest) = name.strip_prefix(prefix) {
            let digits = leading_digits(rest);
            if digits > 0 {
                let pattern = format!("{prefix}#{}", rest.get(digits..).unwrap_or(""));
                return Folded { pattern, layer: None, nameless: true };
            }
        }
    }
    let found = after(name, "blk.", |next| next == Some('.'))
        .or_else(|| after(name, "-", ends_name))
        .or_else(|| after(name, "_l", ends_name));
    match found {
        Some((at, len, layer)) => Folded {
            pattern: format!("{}#{}", &name[..at], &name[at + len..]),
            layer: Some(layer),
            nameless: false,
        },
        None => Folded { pattern: name.to_string(), layer: None, nameless: false },
    }
}

/// What may follow a layer number: the end, ` (view)`, or the scheduler's `#0` of a copy.
fn ends_name(next: Option<char>) -> bool {
    matches!(next, None | Some(' ') | Some('(') | Some('#'))
}

/// First number that follows `mark` and is followed by something that `fits`: byte position, length, value.
fn after(name: &str, mark: &str, fits: fn(Option<char>) -> bool) -> Option<(usize, usize, u32)> {
    name.match_indices(mark).find_map(|(i, _)| {
        let at = i + mark.len();
        let rest = name.get(at..)?;
        let len = leading_digits(rest);
        let value = rest.get(..len)?.parse().ok()?;
        fits(rest.get(len..)?.chars().next()).then_some((at, len, value))
    })
}

fn leading_digits(s: &str) -> usize {
    s.bytes().take_while(u8::is_ascii_digit).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(name: &str) -> (String, Option<u32>) {
        let f = fold(name);
        (f.pattern, f.layer)
    }

    #[test]
    fn layers_are_found_where_llama_puts_them() {
        assert_eq!(folded("Qcur-12"), ("Qcur-#".into(), Some(12)));
        assert_eq!(folded("Qcur-0 (view) (permuted)"), ("Qcur-# (view) (permuted)".into(), Some(0)));
        assert_eq!(folded("blk.7.ffn_up.weight"), ("blk.#.ffn_up.weight".into(), Some(7)));
        assert_eq!(folded("cache_k_l31"), ("cache_k_l#".into(), Some(31)));
        assert_eq!(folded("cache_v_l3 (view)"), ("cache_v_l# (view)".into(), Some(3)));
        assert_eq!(folded("CPU#l_out-5#0"), ("CPU#l_out-##0".into(), Some(5)));
    }

    #[test]
    fn other_names_are_left_alone() {
        for name in ["result_norm", "inp_embd", "", "a-b", "x-12y", "blk.x.weight", "-", "é-", "blk.99999999999.w"] {
            assert_eq!(folded(name), (name.to_string(), None), "{name}");
        }
        assert_eq!(fold("node_17"), Folded { pattern: "node_#".into(), layer: None, nameless: true });
        assert_eq!(fold("node_17 (view)").pattern, "node_# (view)");
    }
}

//! Text for tests: sentences of a small grammar, the same for the same seed. Models with random weights predict no text
//! better than another, so this one serves as well as any.

const SUBJECTS: [&str; 8] = [
    "the profiler",
    "a worker thread",
    "the scheduler",
    "an idle core",
    "the tokenizer",
    "a quantized model",
    "the cache",
    "every kernel",
];
const VERBS: [&str; 8] =
    ["reads", "waits for", "overtakes", "measures", "shares", "computes", "forgets", "doubles"];
const OBJECTS: [&str; 8] = [
    "the next token",
    "its 32 blocks",
    "a longer prompt",
    "the barrier",
    "7 rows at once",
    "all of the weights",
    "another context",
    "half the memory",
];
const ENDS: [&str; 6] = [".", ", and then stops.", ";", " twice.", "!", ", as it did before."];

/// At least this many bytes.
pub fn text(seed: u32, bytes: usize) -> String {
    let mut state = seed;
    let mut pick = move |list: &[&'static str]| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        list[(state >> 16) as usize % list.len()]
    };
    let mut out = String::new();
    while out.len() < bytes {
        for (list, gap) in [(&SUBJECTS[..], " "), (&VERBS, " "), (&OBJECTS, ""), (&ENDS, "")] {
            out.push_str(pick(list));
            out.push_str(gap);
        }
        out.push_str(if pick(&["a", "b", "c", "d"]) == "d" { "\n" } else { " " });
    }
    out
}

//! Values in what a view says, found by a path: `phases[phase].tokens_per_s`.
//!
//! A name in brackets is a key: elements of an array with the same keys are added up, and values of two views are compared
//! by their keys. `ops[phase,thread=0]` leaves only the elements with this value. `#` at the end counts elements instead, `*`
//! adds up all fields, and `?` at the end counts what is not known as 0. Spaces in names and values are `_`.

use std::collections::BTreeMap;

use serde_json::Value;

/// Values by their keys; none: one of the values that make it up is not known.
pub type Found = BTreeMap<String, Option<f64>>;

struct Step {
    name: String,
    keys: Vec<String>,
    only: Vec<(String, String)>,
}

fn steps(path: &str) -> Vec<Step> {
    let mut depth = 0;
    let parts = path.split(|c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == '.' && depth == 0
    });
    let step = |part: &str| {
        let (name, rest) = part.split_once('[').unwrap_or((part, ""));
        let (mut keys, mut only) = (Vec::new(), Vec::new());
        for key in rest.trim_end_matches(']').split(',').filter(|key| !key.is_empty()) {
            match key.split_once('=') {
                Some((name, value)) => only.push((name.to_owned(), value.to_owned())),
                None => keys.push(key.to_owned()),
            }
        }
        Step { name: name.to_owned(), keys, only }
    };
    parts.map(step).collect()
}

/// The path without keys, as [`leaves`] names it.
pub fn bare(path: &str) -> String {
    let names: Vec<String> = steps(path.trim_end_matches('?')).into_iter().map(|step| step.name).collect();
    names.join(".")
}

fn word(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.replace(' ', "_"),
        Some(Value::Null) | None => "unknown".to_owned(),
        Some(value) => value.to_string(),
    }
}

/// The values at a path.
pub fn find(view: &Value, path: &str) -> Found {
    let mut found = Found::new();
    walk(view, &steps(path.trim_end_matches('?')), "", path.ends_with('?'), &mut found);
    found
}

fn walk(at: &Value, steps: &[Step], key: &str, lax: bool, found: &mut Found) {
    let [step, rest @ ..] = steps else { return leaf(at, key, lax, found) };
    if let Value::Array(all) = at {
        return all.iter().for_each(|each| walk(each, steps, key, lax, found));
    }
    if step.name == "#" {
        return add(found, key, Some(1.0));
    }
    if let ("*", Value::Object(fields)) = (&*step.name, at) {
        return fields.values().for_each(|each| walk(each, rest, key, lax, found));
    }
    let Some(next) = at.get(&step.name) else { return };
    let Value::Array(all) = next else { return walk(next, rest, key, lax, found) };
    for each in all {
        if step.only.iter().any(|(name, value)| word(each.get(name)) != *value) {
            continue;
        }
        let keys = step.keys.iter().map(|name| format!("{} ", word(each.get(name))));
        walk(each, rest, &format!("{key}{}", keys.collect::<String>()), lax, found);
    }
}

fn leaf(at: &Value, key: &str, lax: bool, found: &mut Found) {
    match at {
        Value::Number(n) => add(found, key, n.as_f64()),
        Value::Bool(it) => add(found, key, Some(f64::from(u8::from(*it)))),
        Value::Null => add(found, key, lax.then_some(0.0)),
        Value::Array(all) => all.iter().for_each(|each| leaf(each, key, lax, found)),
        Value::String(_) | Value::Object(_) => {}
    }
}

fn add(found: &mut Found, key: &str, value: Option<f64>) {
    let sum = found.entry(key.trim_end().to_owned()).or_insert(Some(0.0));
    *sum = sum.zip(value).map(|(a, b)| a + b);
}

/// The paths of all numbers and truth values of a view, without keys. Texts are names, not quantities.
pub fn leaves(view: &Value, at: &str, into: &mut std::collections::BTreeSet<String>) {
    match view {
        Value::Array(all) => all.iter().for_each(|each| leaves(each, at, into)),
        Value::Object(fields) => {
            for (name, value) in fields {
                let below = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                leaves(value, &below, into);
            }
        }
        Value::Number(_) | Value::Bool(_) => drop(into.insert(at.to_owned())),
        Value::Null | Value::String(_) => {}
    }
}

#[test]
fn paths_group_select_and_count() {
    let view = serde_json::json!({ "a": [
        { "k": "x", "n": 1, "b": [{ "t": 0, "v": 2.5 }, { "t": 1, "v": 4 }] },
        { "k": "y", "n": 3, "b": [] },
        { "k": "x", "n": 4, "b": [{ "t": 0, "v": null }] },
    ] });
    let of = |path: &str| -> Vec<(String, Option<f64>)> { find(&view, path).into_iter().collect() };
    assert_eq!(of("a[k].n"), [("x".to_owned(), Some(5.0)), ("y".to_owned(), Some(3.0))]);
    assert_eq!(of("a.n"), [(String::new(), Some(8.0))]);
    assert_eq!(of("a[k].b[t=1].v"), [("x".to_owned(), Some(4.0))]);
    assert_eq!(
        of("a[k,n].b[t].v"),
        [("x 1 0".to_owned(), Some(2.5)), ("x 1 1".to_owned(), Some(4.0)), ("x 4 0".to_owned(), None)]
    );
    assert_eq!(of("a[k].#"), [("x".to_owned(), Some(2.0)), ("y".to_owned(), Some(1.0))]);
    assert_eq!(of("a[k].b[t=0].v?"), [("x".to_owned(), Some(2.5))]);
    assert_eq!(of("a[n=3].*"), [(String::new(), Some(3.0))]);
    assert_eq!(bare("a[k,t=1].b.v?"), "a.b.v");
    let mut all = std::collections::BTreeSet::new();
    leaves(&view, "", &mut all);
    assert_eq!(all.into_iter().collect::<Vec<_>>(), ["a.b.t", "a.b.v", "a.n"]);
}

//! docs/SECURITY.md and docs/TRUST.md name tests that exist.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Sources below src/ whose module has this name.
fn modules(dir: &Path, name: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            let module = path.join("mod.rs");
            if path.file_name().is_some_and(|n| n == name) && module.exists() {
                found.push(module);
            }
            modules(&path, name, found);
        } else if path.file_stem().is_some_and(|stem| stem == name) {
            found.push(path);
        }
    }
}

fn has_tests(path: &Path) -> bool {
    let text = fs::read_to_string(path).expect("a source");
    let folder = match path.file_name() {
        Some(name) if name == "mod.rs" => path.with_file_name(""),
        _ => path.with_extension(""),
    };
    text.contains("#[test]") || ["tests.rs", "tests/mod.rs"].iter().any(|tests| folder.join(tests).exists())
}

#[test]
fn every_promise_names_a_test_that_is_there() {
    assert!(named("docs/SECURITY.md") > 40);
    assert!(named("docs/TRUST.md") > 12);
    assert!(root().join("tests/plain/hostile_text.rs").exists());
}

/// Number of tests that a page names; all must exist.
fn named(page: &str) -> u32 {
    let page = fs::read_to_string(root().join(page)).expect("the page");
    let mut named = 0;
    for word in page.split('`').skip(1).step_by(2) {
        let Some((place, test)) = word.split_once("::").filter(|(p, _)| !p.contains(' ')) else { continue };
        if test == "tests" {
            let mut found = Vec::new();
            modules(&root().join("src"), place, &mut found);
            modules(&root().join("crates"), place, &mut found);
            modules(&root().join("programs"), place, &mut found);
            assert!(found.iter().any(|path| has_tests(path)), "{word}: no tests in {found:?}");
        } else {
            let (suite, test) = test.split_once("::").unwrap_or_else(|| panic!("{word} names no suite"));
            let suite = root().join("tests").join(place).join(format!("{suite}.rs"));
            let text = fs::read_to_string(&suite).unwrap_or_else(|e| panic!("{word}: {e}"));
            assert!(text.contains(&format!("fn {test}()")), "{word} is not in {}", suite.display());
        }
        named += 1;
    }
    named
}

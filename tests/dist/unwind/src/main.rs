//! Panics, and says whether the stack was unwound: the message on stderr, each destructor's line on stdout,
//! exit code 0 where the panic was caught.

use std::hint::black_box;
use std::panic::catch_unwind;

struct Loud(&'static str);

impl Drop for Loud {
    fn drop(&mut self) {
        println!("dropped {}", self.0);
    }
}

#[inline(never)]
fn inner(zero: usize) -> usize {
    let _guard = Loud("inner");
    [1, 2, 3][black_box(zero) + 3]
}

#[inline(never)]
fn outer(zero: usize) -> usize {
    let _guard = Loud("outer");
    inner(zero) + 1
}

fn main() {
    let caught = catch_unwind(|| outer(black_box(0))).is_err();
    let thread = std::thread::spawn(|| outer(black_box(0))).join().is_err();
    println!("caught {caught}, in a thread {thread}");
    std::process::exit(if caught && thread { 0 } else { 1 });
}

//! Panics in a thread that the main thread waits for: must print the message and abort, so that no line of stdout and
//! no exit code claims success.

use std::hint::black_box;

fn main() {
    let thread = std::thread::spawn(|| [1, 2, 3][black_box(0) + 3]);
    println!("went on: {:?}", thread.join().is_err());
}

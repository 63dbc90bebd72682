//! Panics in a thread that the main thread waits for: must print the message and abort, so that no line of stdout and
//! no exit code claims success.

fn main() {
    let thread = std::thread::spawn(panics::out_of_bounds);
    println!("went on: {:?}", thread.join().is_err());
}

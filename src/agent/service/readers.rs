//! Entries to readers of what others write that nothing outside of this module needs but their fuzzing.

use std::fs::File;
use std::io;

use super::socket::Request;
use super::{facts, symbols};

/// A line that came to the socket.
///
/// # Errors
/// It asks for nothing that there is.
pub fn request(line: &[u8]) -> Result<Request, String> {
    Request::read(line)
}

/// Reads the bytes as each file of a process that the service reads.
pub fn of_process(mut bytes: &[u8]) {
    facts::parse_stat(bytes);
    facts::parse_users(bytes);
    facts::each_image(&mut bytes, &mut drop);
}

/// Whether a file that a process has mapped defines functions of all these names.
///
/// # Errors
/// The file cannot be read.
pub fn defines(file: &File, names: &[&str]) -> io::Result<bool> {
    symbols::defines(file, names, &mut 0)
}

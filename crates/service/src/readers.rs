//! Entry points for fuzzing the parsers of foreign data; nothing else outside this module needs them.

use std::fs::File;
use std::io;

use crate::socket::{RequestError, ServiceRequest};
use inspector::symbols;
use machine::proc;

/// A line received on the socket.
///
/// # Errors
/// It is not a known request.
pub fn request(line: &[u8]) -> Result<ServiceRequest, RequestError> {
    ServiceRequest::read(line)
}

/// Parses the bytes as each per-process file that the service reads.
pub fn of_process(mut bytes: &[u8]) {
    proc::parse_stat(bytes);
    proc::parse_users(bytes);
    proc::each_image(&mut bytes, &mut drop);
}

/// Whether a file that a process has mapped defines functions with all these names.
///
/// # Errors
/// The file cannot be read.
pub fn defines(file: &File, names: &[&str]) -> io::Result<bool> {
    symbols::defines(file, names, &mut 0)
}

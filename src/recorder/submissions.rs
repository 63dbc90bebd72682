//! Submissions to devices, by the kernel's tracepoints: read from the moment on at which an engine has a device's code.

use std::io::Write;

use crate::capture::source::FeatureStatus;
use crate::capture::submissions::{NAME, NoSubmissions, SOURCES, Watch};
use pfi::record::{Availability, Feature};
use pfi::{Encoder, WriteError};

/// Whether the kernel's tracepoints are read.
#[derive(Default)]
pub enum DeviceWatch {
    /// No engine has a device's code so far.
    #[default]
    Idle,
    On(Box<Watch>),
    Off(NoSubmissions),
}

impl DeviceWatch {
    /// Begins to read the tracepoints, unless that was tried before.
    pub fn start(&mut self) {
        if matches!(self, DeviceWatch::Idle) {
            *self = match Watch::start(SOURCES) {
                Ok(watch) => DeviceWatch::On(Box::new(watch)),
                Err(why) => DeviceWatch::Off(why),
            };
        }
    }

    /// Writes the submissions that have ended; with `end`, the last ones.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn write<W: Write>(&mut self, enc: &mut Encoder<W>, end: bool) -> Result<(), WriteError> {
        match self {
            DeviceWatch::On(watch) if end => watch.finish(enc),
            DeviceWatch::On(watch) => watch.pass(enc),
            DeviceWatch::Idle | DeviceWatch::Off(_) => Ok(()),
        }
    }

    /// Writes whether there are submissions in the trace that ends here. If there are none, only if `used`: a device
    /// had work.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn tell<W: Write>(&mut self, enc: &mut Encoder<W>, used: bool) -> Result<(), WriteError> {
        let FeatureStatus { state, why } = match self {
            DeviceWatch::On(watch) => watch.feature_status(),
            DeviceWatch::Off(why) => FeatureStatus { state: Availability::None, why: why.to_string() },
            DeviceWatch::Idle => return Ok(()),
        };
        match used || state != Availability::None {
            true => enc.feature(&Feature { name: NAME, state, why: &why }),
            false => Ok(()),
        }
    }
}

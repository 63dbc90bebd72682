//! Submissions to devices, by the kernel's tracepoints: read from the moment on at which an engine has a device's code.

use super::Session;
use crate::capture::source::{FeatureStatus, GpuDetail};
use crate::capture::submissions::{NAME, NoSubmissions, SOURCES, Watch};
use pfi::WriteError;
use pfi::record::{Availability, Feature};

/// Whether the kernel's tracepoints are read.
#[derive(Default)]
pub(super) enum DeviceWatch {
    /// No engine has a device's code so far.
    #[default]
    Idle,
    On(Box<Watch>),
    Off(NoSubmissions),
}

impl Session {
    /// Begins to read the tracepoints if an engine may use a device.
    pub(super) fn watch_devices(&mut self) {
        let wanted = self.options.capture.gpu >= GpuDetail::Op;
        let drives = || self.engines.iter().flat_map(|a| &a.engine.modules).any(|m| m.roles.drives);
        if matches!(self.submissions, DeviceWatch::Idle) && wanted && drives() {
            self.submissions = match Watch::start(SOURCES) {
                Ok(watch) => DeviceWatch::On(Box::new(watch)),
                Err(why) => DeviceWatch::Off(why),
            };
        }
    }

    /// Writes the submissions that have ended; with `end`, the last ones.
    pub(super) fn write_submissions(&mut self, end: bool) -> Result<(), WriteError> {
        let DeviceWatch::On(watch) = &mut self.submissions else { return Ok(()) };
        let enc = &mut self.drain.borrow_mut().enc;
        if end { watch.finish(enc) } else { watch.pass(enc) }
    }

    /// Writes whether there are submissions in the trace that ends here, if `used`: a device had work.
    pub(super) fn submissions_told(&mut self, used: bool) -> Result<(), WriteError> {
        let status = match &mut self.submissions {
            DeviceWatch::On(watch) => watch.feature_status(),
            DeviceWatch::Off(why) => FeatureStatus { state: Availability::None, why: why.to_string() },
            DeviceWatch::Idle => return Ok(()),
        };
        if used || status.state != Availability::None {
            let (state, why) = (status.state, &*status.why);
            self.drain.borrow_mut().enc.feature(&Feature { name: NAME, state, why })?;
        }
        Ok(())
    }
}

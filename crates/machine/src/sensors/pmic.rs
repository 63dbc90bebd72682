//! Raspberry Pi 5: the rails of its power management chip, asked of the firmware through its mailbox, as the program
//! `vcgencmd pmic_read_adc` does (github.com/raspberrypi/utils, vcgencmd/vcgencmd.c).
//!
//! The rails are those behind the chip's converters. What the complete board takes was fitted to an external meter:
//! the sum of all rails' V times I, times 1.1451, plus 0.5879 W (jfikar/RPi5-power). An estimate, and named so.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use super::found::{Found, FoundSensor, label};
use super::gauge::Gauge;
use pfi::record::{SensorKind, SensorOrigin};

/// The firmware converts anew about ten times a second; asking it takes a millisecond of its processor.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// `_IOWR(100, 0, char *)` on a 64-bit system.
const PROPERTY: libc::c_ulong = 3 << 30 | 8 << 16 | 100 << 8;
/// Tag of the mailbox: run a command, and get its text.
const GET_GENCMD_RESULT: u32 = 0x0003_0080;
/// Bytes for the command, and for its result.
const TEXT: usize = 1024;
/// Words before and after the text: size, request, tag, length of the text, length of the result, error; end.
const HEAD: usize = 6;
const WORDS: usize = HEAD + TEXT / 4 + 1;
/// W per W of the rails, and W beside.
const SLOPE: f64 = 1.1451;
const BESIDE: f64 = 0.5879;
/// More than the board can take, W: its supply gives 25 W.
const MOST_WATTS: f64 = 100.0;

/// Adds the sensor if this is a board that has it.
pub fn find(dev: &Path, sysfs: &Path, found: &mut Found) {
    let model = label(sysfs.join("firmware/devicetree/base/model")).unwrap_or_default();
    if !model.starts_with("Raspberry Pi 5") && !model.starts_with("Raspberry Pi Compute Module 5") {
        return;
    }
    let path = dev.join("vcio");
    let mut pmic = match File::open(&path) {
        Ok(device) => Pmic { device, last: None },
        Err(e) => return found.remark(format!("power rails are not read: {}: {e}", path.display())),
    };
    match pmic.read() {
        Ok(_) => {
            let name = "estimate from PMIC rails (whole board)".into();
            let sensor = FoundSensor::new(name, SensorKind::Power, path, Box::new(pmic));
            let interval_ns = LEAST_PAUSE.as_nanos() as u64;
            found.sensors.push(FoundSensor { interval_ns, ..sensor.from(SensorOrigin::Estimate) });
        }
        Err(e) => found.remark(format!("power rails are not read: {}: {e}", path.display())),
    }
}

struct Pmic {
    device: File,
    /// When the firmware was last asked, and its answer in µW.
    last: Option<(Instant, i64)>,
}

impl Gauge for Pmic {
    fn read(&mut self) -> io::Result<i64> {
        if let Some((_, value)) = self.last.filter(|(at, _)| at.elapsed() < LEAST_PAUSE) {
            return Ok(value);
        }
        let mut message = message("pmic_read_adc");
        property(&self.device, &mut message)?;
        let value = watts(&answer(&message)?).map(|w| (w * 1e6) as i64);
        let value = value.ok_or_else(|| io::Error::other("the firmware names no rails"))?;
        self.last = Some((Instant::now(), value));
        Ok(value)
    }
}

/// Sends a message, and receives the answer in its place.
fn property(device: &impl AsFd, message: &mut [u32; WORDS]) -> io::Result<()> {
    // SAFETY: the driver reads and writes as many bytes as the first word says, which is the size of `message`.
    let done = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), PROPERTY as _, message.as_mut_ptr()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn message(command: &str) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    let head = [WORDS as u32 * 4, 0, GET_GENCMD_RESULT, TEXT as u32, 0, 0];
    words.iter_mut().zip(head).for_each(|(word, value)| *word = value);
    // The text ends with a zero byte.
    for (word, bytes) in words.iter_mut().skip(HEAD).zip(command.as_bytes().chunks(4)) {
        let mut four = [0; 4];
        four.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        *word = u32::from_ne_bytes(four);
    }
    words
}

/// The text of an answer.
fn answer(words: &[u32; WORDS]) -> io::Result<String> {
    if words.get(5).is_some_and(|error| *error != 0) {
        return Err(io::Error::other("the firmware does not know pmic_read_adc"));
    }
    let bytes: Vec<u8> = words.iter().skip(HEAD).take(TEXT / 4).flat_map(|w| w.to_ne_bytes()).collect();
    let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// What the board takes by its rails: lines like `VDD_CORE_A current(7)=1.73500000A` and
/// `VDD_CORE_V volt(15)=0.72080000V`, in any order. None if no rail has both, or a value is impossible.
fn watts(text: &str) -> Option<f64> {
    let value = |line: &str, unit: char| -> Option<(String, f64)> {
        let (name, value) = line.trim().split_once('=')?;
        let name = name.split_ascii_whitespace().next()?.strip_suffix(['A', 'V'])?;
        let value: f64 = value.trim().strip_suffix(unit)?.parse().ok()?;
        (value.is_finite() && value >= 0.0).then(|| (name.to_owned(), value))
    };
    let volts: Vec<(String, f64)> = text.lines().filter_map(|l| value(l, 'V')).collect();
    let amps = text.lines().filter_map(|l| value(l, 'A'));
    let rails = amps.filter_map(|(name, amps)| {
        Some(amps * volts.iter().find(|(of, _)| *of == name).map(|(_, volts)| *volts)?)
    });
    let (sum, n) = rails.fold((0.0, 0), |(sum, n), watts| (sum + watts, n + 1));
    let watts = sum * SLOPE + BESIDE;
    (n > 0 && watts < MOST_WATTS).then_some(watts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = " 3V7_WL_SW_A current(0)=0.10000000A\n VDD_CORE_A current(7)=2.00000000A\n
        3V7_WL_SW_V volt(8)=3.70000000V\n VDD_CORE_V volt(15)=0.75000000V\n EXT5V_V volt(24)=5.15000000V\n
        BATT_V volt(25)=0.00000000V\n";

    #[test]
    fn rails_are_summed_and_scaled_to_the_board() {
        let want = (0.1 * 3.7 + 2.0 * 0.75) * 1.1451 + 0.5879;
        assert!((watts(ANSWER).expect("rails") - want).abs() < 1e-9);
        for none in [
            "",
            "x=1A\n",
            "error=1 error_msg=\"Command not registered\"",
            "A_A=nanA\nA_V=1V\n",
            "A_A=1e9A\nA_V=1V\n",
            "A_A=-1A\nA_V=1V",
        ] {
            assert_eq!(watts(none), None, "{none}");
        }
    }

    #[test]
    fn a_message_is_laid_out_as_the_firmware_expects() {
        let mut words = message("pmic_read_adc");
        assert_eq!(words[..6], [1052, 0, 0x30080, 1024, 0, 0]);
        assert_eq!(words[6].to_ne_bytes(), *b"pmic");
        assert_eq!(answer(&words).expect("a text"), "pmic_read_adc");
        assert_eq!(words[WORDS - 1], 0);
        words[5] = 1;
        assert!(answer(&words).is_err());
        words = [u32::MAX; WORDS];
        words[5] = 0;
        assert!(answer(&words).is_ok_and(|text| watts(&text).is_none()));
    }

    #[test]
    fn a_device_that_is_no_mailbox_is_said() {
        let dir = tempfile::tempdir().expect("a directory");
        let (dev, sysfs) = (dir.path().join("dev"), dir.path().join("sys"));
        let model = sysfs.join("firmware/devicetree/base/model");
        std::fs::create_dir_all(model.parent().expect("a parent")).expect("a directory");
        std::fs::create_dir(&dev).expect("a directory");
        std::fs::write(dev.join("vcio"), "").expect("a file");
        let said = |board: &str| {
            std::fs::write(&model, board).expect("a file");
            let mut found = Found::default();
            find(&dev, &sysfs, &mut found);
            assert!(found.sensors.is_empty());
            found.remarks.join("; ")
        };
        assert!(said("Raspberry Pi 5 Model B Rev 1.0\0").contains("power rails are not read"));
        assert_eq!(said("Raspberry Pi 4 Model B\0"), "");
    }
}

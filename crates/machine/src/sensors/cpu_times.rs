//! How long each CPU has been busy: the beginning of /proc/stat.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::found;

/// Bytes of /proc/stat that are read: the lines of the CPUs come first, at most some 150 bytes each.
const MOST_BYTES: usize = 64 << 10;
/// Highest number of a CPU that is taken for one; the kernel's limit is 8192 (NR_CPUS on x86-64).
const CPUS: usize = 8192;

/// Busy times of all CPUs, as last read.
pub struct CpuTimes {
    file: File,
    bytes: Vec<u8>,
    /// By CPU, in ticks of 10 ms (USER_HZ); None: not in the file, as while a CPU is offline.
    busy: Vec<Option<u64>>,
}

impl CpuTimes {
    /// # Errors
    /// The file cannot be opened.
    pub fn open(proc: &Path) -> io::Result<CpuTimes> {
        let file = found::open(&proc.join("stat"))?;
        Ok(CpuTimes { file, bytes: vec![0; MOST_BYTES], busy: Vec::new() })
    }

    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn refresh(&mut self) -> io::Result<()> {
        let len = self.file.read_at(&mut self.bytes, 0)?;
        let text = String::from_utf8_lossy(self.bytes.get(..len).unwrap_or_default());
        self.busy.clear();
        for (cpu, ticks) in text.lines().filter_map(busy) {
            if self.busy.len() <= cpu {
                self.busy.resize(cpu + 1, None);
            }
            if let Some(slot) = self.busy.get_mut(cpu) {
                *slot = Some(ticks);
            }
        }
        Ok(())
    }

    /// Ticks of 10 ms for which a CPU has been busy since the machine started.
    pub fn busy(&self, cpu: usize) -> Option<u64> {
        self.busy.get(cpu).copied().flatten()
    }
}

/// CPU and busy ticks of a line `cpuN user nice system idle iowait irq softirq steal guest guest_nice`
/// (Documentation/filesystems/proc.rst): guests are within user, and stolen time was not ours.
fn busy(line: &str) -> Option<(usize, u64)> {
    let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
    let cpu = fields.next()?.parse().ok().filter(|cpu| *cpu < CPUS)?;
    let ticks: Vec<u64> = fields.map_while(|f| f.parse().ok()).collect();
    let of = |i: usize| ticks.get(i).copied().unwrap_or(0);
    ticks.get(3)?;
    Some((cpu, [0, 1, 2, 5, 6].into_iter().fold(0u64, |sum, i| sum.saturating_add(of(i)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_waiting_stolen_and_guest_time_is_not_busy() {
        assert_eq!(busy("cpu7 1 20 300 4000 5000 60000 700000 8000000 9 9"), Some((7, 760_321)));
        assert_eq!(busy("cpu2 1 2 3 4"), Some((2, 6)));
        for none in ["cpu  1 2 3 4", "cpu1 1 2", "cpu99999999 1 2 3 4", "intr 5", "cpu-1 1 2 3 4", ""] {
            assert_eq!(busy(none), None, "{none}");
        }
        assert_eq!(busy(&format!("cpu0 {0} {0} 0 0", u64::MAX)), Some((0, u64::MAX)));
    }
}

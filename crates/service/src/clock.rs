//! Wall clock times in the formats of people and files, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use common::calendar::date;

/// In RFC 3339 format, to the millisecond: `2026-11-21T20:41:43.123Z`.
pub fn rfc3339(at: SystemTime) -> String {
    let [y, mo, d, h, mi, s, ms] = parts(at);
    format!("{y:04}-{mo:02}-{d:02}T{h:02}:{mi:02}:{s:02}.{ms:03}Z")
}

/// The same for file names, so that they sort by time: `20261121T204143.123Z`.
pub fn compact(at: SystemTime) -> String {
    rfc3339(at).replace(['-', ':'], "")
}

/// Year, month, day, hour, minute, second, millisecond. Times before 1970 become the start of 1970.
fn parts(at: SystemTime) -> [u64; 7] {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let [year, month, day] = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    [year, month, day, hour, minute, second, since.subsec_millis().into()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // From date -u -d @N.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_795_293_703, "2026-11-21T20:41:43.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
            (4_107_455_999, "2100-02-27T23:59:59.000Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
        let at = UNIX_EPOCH + Duration::from_millis(1_795_293_703_007);
        assert_eq!(compact(at), "20261121T204143.007Z");
        // Every day of 800 years follows the one before it.
        let mut before = date(0);
        for day in 1..292_194 {
            let now = date(day);
            assert!(now > before && (now[2] == before[2] + 1 || now[2] == 1), "{before:?} {now:?}");
            before = now;
        }
        assert_eq!(before, [2769, 12, 31]);
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(5)), rfc3339(UNIX_EPOCH));
    }
}

//! Dates of the calendar, in UTC.

/// The Gregorian date (year, month, day) of a day since 1970. Years are counted from March, so that a leap day is the
/// last of its year; 400 years are 146097 days.
pub fn date(day: u64) -> [u64; 3] {
    // From 1970-01-01 back to 0000-03-01.
    let day = day.saturating_add(719_468);
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Five months from March on have 153 days, and so do the next five.
    let month = (5 * day + 2) / 153;
    let of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    [era * 400 + year + next, month, of_month]
}

/// The date of a time in seconds since 1970: `2026-11-21`.
pub fn day(seconds: u64) -> String {
    let [year, month, day] = date(seconds / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

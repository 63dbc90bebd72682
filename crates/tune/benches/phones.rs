//! The phones of the MNN-AECS paper by name. Published: each one's cores with their highest clocks, and the set that AECS
//! chose (the Mate 40 Pro's 20.6 tok/s and 6.2 W with two cores, 21.7 and 8.7 W with four as well). All other figures
//! are ours, chosen so that the published set is the optimum at a slack of 8 %: capacities, speeds of single cores, watts,
//! the memory's limit and the cost of a thread. They show that the search finds these sets, not how fast a phone is.

use super::boards::{Board, Cores, Sharing};

/// Cores, highest clock in kHz, capacity, tokens per second of one core, watts of one busy core.
type Row = (u32, u64, u64, f64, f64);

pub struct Phone {
    pub board: Board,
    pub sharing: Sharing,
    /// The set that the paper names, as counts.
    pub published: Vec<u32>,
}

fn phone(
    name: &str,
    rows: &[Row],
    limit: f64,
    each: f64,
    base: f64,
    sharing: Sharing,
    published: &[u32],
) -> Phone {
    let cores = |&(count, max_khz, capacity, rate, busy): &Row| Cores {
        count,
        capacity,
        max_khz,
        rate,
        busy,
        idle: 0.04 * busy,
        uncore: 0.0,
    };
    let board = Board {
        name: name.into(),
        clusters: rows.iter().map(cores).collect(),
        limit,
        sharpness: 6.0,
        each,
        base,
        memory: 0.0,
        clock: 1.0,
        rough: 0.0,
        seed: 0,
    };
    Phone { board, sharing, published: published.to_vec() }
}

/// All five.
pub fn all() -> Vec<Phone> {
    use Sharing::{Evenly, Stealing};
    vec![
        // Kirin 9000: Cortex-A77, A77, A55.
        phone(
            "Mate 40 Pro",
            &[
                (1, 3_130_000, 1024, 14.5, 1.65),
                (3, 2_540_000, 830, 11.8, 1.05),
                (4, 2_050_000, 280, 2.9, 0.2),
            ],
            23.0,
            0.0008,
            3.9,
            Evenly,
            &[0, 2, 0],
        ),
        // Kirin 990 5G: Cortex-A76, A76, A55.
        phone(
            "V30 Pro",
            &[
                (2, 2_860_000, 1024, 13.0, 1.9),
                (2, 2_360_000, 845, 11.5, 1.15),
                (4, 1_950_000, 290, 2.3, 0.2),
            ],
            22.0,
            0.0012,
            3.0,
            Evenly,
            &[0, 2, 0],
        ),
        // Exynos 1580: Cortex-A720, A720, A520.
        phone(
            "Galaxy A56",
            &[
                (1, 2_900_000, 1024, 13.5, 1.6),
                (3, 2_600_000, 918, 11.8, 1.0),
                (4, 1_950_000, 330, 3.0, 0.22),
            ],
            22.5,
            0.001,
            3.0,
            Evenly,
            &[0, 2, 0],
        ),
        // Snapdragon 8 Gen 3: Cortex-X4, A720, A720, A520. The published set pays only where threads steal work.
        phone(
            "Meizu 21",
            &[
                (1, 3_300_000, 1024, 14.5, 1.7),
                (3, 3_150_000, 750, 9.8, 1.3),
                (2, 2_960_000, 700, 9.5, 1.0),
                (2, 2_270_000, 300, 1.5, 0.25),
            ],
            22.0,
            0.003,
            3.0,
            Stealing,
            &[1, 0, 1, 0],
        ),
        // Snapdragon 8 Elite: Oryon, Oryon.
        phone(
            "Xiaomi 15 Pro",
            &[(2, 4_320_000, 1024, 15.0, 1.7), (6, 3_530_000, 700, 8.5, 1.2)],
            24.0,
            0.0008,
            3.0,
            Evenly,
            &[2, 0],
        ),
    ]
}

//! Places the boxes of a graph in rows, so that every edge points down and few of them cross. Uses only sizes and
//! edges.
//!
//! A layered layout: each box goes to a row below its lowest source, as near to its users as possible. An edge
//! that spans several rows gets a waypoint in each. Rows are ordered by the mean position of the neighbours. Then
//! each row takes the positions closest to its neighbours that its order and the box widths allow.

use common::order;

/// Distance between items of a row, and between rows.
const GAP: f64 = 18.0;
const ROW_GAP: f64 = 26.0;
/// Number of passes down and up over all rows.
const PASSES: usize = 8;
/// Maximum number of waypoints; edges beyond that are drawn straight.
const MAX_WAYPOINTS: usize = 100_000;

/// The positions of everything.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DagLayout {
    /// Centre of each box.
    pub at: Vec<(f64, f64)>,
    /// For each edge, from the bottom of one box through its waypoints to the top of the other.
    pub lines: Vec<Vec<(f64, f64)>>,
    pub width: f64,
    pub height: f64,
}

/// A box or a waypoint.
struct LayoutItem {
    width: f64,
    row: usize,
    x: f64,
    up: Vec<usize>,
    down: Vec<usize>,
}

/// Places boxes of these widths and heights. Edges must go from lower to higher numbers; others are not drawn.
pub fn layout(sizes: &[(f64, f64)], edges: &[(usize, usize)]) -> DagLayout {
    let ranks = rows(sizes.len(), edges);
    let mut items: Vec<LayoutItem> =
        sizes.iter().zip(&ranks).map(|((width, _), row)| item(*width, *row)).collect();
    let ways: Vec<Vec<usize>> = edges.iter().map(|e| way(&mut items, *e)).collect();
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); ranks.iter().max().map_or(0, |r| r + 1)];
    for (i, item) in items.iter().enumerate() {
        rows[item.row].push(i);
    }
    arrange(&mut items, &mut rows);
    place(&mut items, &rows);
    finish(sizes, &items, &rows, &ways)
}

fn item(width: f64, row: usize) -> LayoutItem {
    LayoutItem { width, row, x: 0.0, up: Vec::new(), down: Vec::new() }
}

/// The row of each box.
fn rows(n: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let down = || edges.iter().filter(|(from, to)| from < to && *to < n);
    let mut by_target: Vec<(usize, usize)> = down().copied().collect();
    order::by_key(&mut by_target, |(from, to)| (*to as u64, *from as u64));
    let mut row = vec![0usize; n];
    for (from, to) in &by_target {
        row[*to] = row[*to].max(row[*from] + 1);
    }
    let (mut taken, mut takes) = (vec![0usize; n], vec![0usize; n]);
    for (from, to) in down() {
        taken[*from] += 1;
        takes[*to] += 1;
    }
    // A box with no more sources than users moves down to its users: in total its edges do not get longer.
    order::by_key(&mut by_target, |(from, to)| (!(*from as u64), *to as u64));
    for users in by_target.chunk_by(|a, b| a.0 == b.0) {
        let Some((from, _)) = users.first() else { continue };
        let nearest = users.iter().map(|(_, to)| row[*to]).min().unwrap_or(0);
        if takes[*from] <= taken[*from] {
            row[*from] = nearest.saturating_sub(1).max(row[*from]);
        }
    }
    row
}

/// The items on an edge's path, including both ends; creates waypoints for the rows in between.
fn way(items: &mut Vec<LayoutItem>, (from, to): (usize, usize)) -> Vec<usize> {
    if from >= to || to >= items.len() {
        return Vec::new();
    }
    let (first, last) = (items[from].row, items[to].row);
    let mut way = vec![from];
    if items.len() + last - first <= MAX_WAYPOINTS {
        for row in first + 1..last {
            way.push(items.len());
            items.push(item(0.0, row));
        }
    }
    way.push(to);
    for pair in way.windows(2) {
        if let [a, b] = *pair {
            items[a].down.push(b);
            items[b].up.push(a);
        }
    }
    way
}

/// Sorts each row by the mean position of the neighbours.
fn arrange(items: &mut [LayoutItem], rows: &mut [Vec<usize>]) {
    // Before there are positions, x is the index in the row.
    let number = |items: &mut [LayoutItem], row: &[usize]| {
        for (place, i) in row.iter().enumerate() {
            items[*i].x = place as f64;
        }
    };
    rows.iter().for_each(|row| number(items, row));
    for pass in 0..PASSES {
        for step in 0..rows.len() {
            let r = if pass % 2 == 0 { step } else { rows.len() - 1 - step };
            let row = &mut rows[r];
            order::by_key(row, |i| {
                let item = &items[*i];
                let near = if pass % 2 == 0 { &item.up } else { &item.down };
                (order::fraction(middle(items, near).unwrap_or(item.x)), 0)
            });
            number(items, row);
        }
    }
}

fn middle(items: &[LayoutItem], of: &[usize]) -> Option<f64> {
    let sum: f64 = of.iter().map(|i| items[*i].x).sum();
    (!of.is_empty()).then(|| sum / of.len() as f64)
}

/// Assigns x to each item.
fn place(items: &mut [LayoutItem], rows: &[Vec<usize>]) {
    for row in rows {
        let mut x = 0.0;
        for i in row {
            x += items[*i].width / 2.0;
            items[*i].x = x;
            x += items[*i].width / 2.0 + GAP;
        }
    }
    for pass in 0..PASSES {
        for step in 0..rows.len() {
            let row = &rows[if pass % 2 == 0 { step } else { rows.len() - 1 - step }];
            let wanted: Vec<f64> = row
                .iter()
                .map(|i| {
                    let near = if pass % 2 == 0 { &items[*i].up } else { &items[*i].down };
                    middle(items, near).unwrap_or(items[*i].x)
                })
                .collect();
            let widths: Vec<f64> = row.iter().map(|i| items[*i].width).collect();
            for (i, x) in row.iter().zip(nearest(&wanted, &widths)) {
                items[*i].x = x;
            }
        }
    }
}

/// The positions closest to the wanted ones (least squares) at which boxes of these widths keep their order and
/// distance.
///
/// After subtracting the space taken by all previous boxes, positions must be non-decreasing: this is an isotonic
/// regression, in which conflicting neighbours take their mean.
fn nearest(wanted: &[f64], widths: &[f64]) -> Vec<f64> {
    let mut room = 0.0;
    let mut offsets = Vec::new();
    // Runs of boxes that move together: sum of the wanted positions, and number of boxes.
    let mut runs: Vec<(f64, usize)> = Vec::new();
    for (want, width) in wanted.iter().zip(widths) {
        room += width / 2.0;
        offsets.push(room);
        let mut run = (want - room, 1);
        room += width / 2.0 + GAP;
        while let Some(before) = runs.pop_if(|before| before.0 / before.1 as f64 >= run.0 / run.1 as f64) {
            run = (run.0 + before.0, run.1 + before.1);
        }
        runs.push(run);
    }
    let means = runs.iter().flat_map(|(sum, n)| std::iter::repeat_n(sum / *n as f64, *n));
    means.zip(offsets).map(|(mean, offset)| mean + offset).collect()
}

fn finish(sizes: &[(f64, f64)], items: &[LayoutItem], rows: &[Vec<usize>], ways: &[Vec<usize>]) -> DagLayout {
    let left = items.iter().map(|i| i.x - i.width / 2.0).reduce(f64::min).unwrap_or(0.0);
    let width = items.iter().map(|i| i.x + i.width / 2.0 - left).reduce(f64::max).unwrap_or(0.0);
    let mut y = Vec::new();
    let mut top = 0.0;
    for row in rows {
        let height = row.iter().filter_map(|i| sizes.get(*i)).map(|s| s.1).reduce(f64::max).unwrap_or(0.0);
        y.push(top + height / 2.0);
        top += height + ROW_GAP;
    }
    let at = |i: usize| (items[i].x - left, y[items[i].row]);
    let half = |i: usize| sizes.get(i).map_or(0.0, |s| s.1 / 2.0);
    let line = |way: &Vec<usize>| {
        let mut points: Vec<(f64, f64)> = way.iter().map(|i| at(*i)).collect();
        if let ([from, .., to], [first, .., last]) = (way.as_slice(), points.as_mut_slice()) {
            first.1 += half(*from);
            last.1 -= half(*to);
        }
        points
    };
    DagLayout {
        at: (0..sizes.len()).map(at).collect(),
        lines: ways.iter().map(line).collect(),
        width,
        height: (top - ROW_GAP).max(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sources_stand_above_their_users() {
        // 0 -> 1 -> 2 -> 3 and 0 -> 3; 4 is a source of 5 only, and 3 does not need it.
        let edges = [(0, 1), (1, 2), (2, 3), (0, 3), (4, 5), (3, 5)];
        let l = layout(&[(40.0, 20.0); 6], &edges);
        for (from, to) in edges {
            assert!(l.at[from].1 < l.at[to].1, "{from} {to}");
        }
        // The long edge has two waypoints, and 4 is directly above its user.
        assert_eq!(l.lines[3].len(), 4);
        assert_eq!(l.at[4].1, l.at[3].1);
    }

    #[test]
    fn places_are_the_nearest_that_there_are() {
        assert_eq!(nearest(&[0.0, 100.0], &[10.0, 10.0]), [0.0, 100.0]);
        let crossed = nearest(&[100.0, 0.0], &[10.0, 10.0]);
        assert_eq!(crossed, [50.0 - (10.0 + GAP) / 2.0, 50.0 + (10.0 + GAP) / 2.0]);
    }

    proptest! {
        #[test]
        fn nothing_overlaps_and_nothing_is_outside(
            raw in prop::collection::vec((0usize..30, 0usize..30), 0..60), widths in prop::collection::vec(1.0f64..90.0, 30)
        ) {
            let sizes: Vec<(f64, f64)> = widths.iter().map(|w| (*w, 10.0)).collect();
            let edges: Vec<(usize, usize)> = raw.into_iter().filter(|(a, b)| a < b).collect();
            let l = layout(&sizes, &edges);
            for (i, (x, y)) in l.at.iter().enumerate() {
                prop_assert!(x - sizes[i].0 / 2.0 > -1e-6 && x + sizes[i].0 / 2.0 < l.width + 1e-6);
                for (j, (u, v)) in l.at.iter().enumerate().filter(|(j, _)| *j > i) {
                    let apart = (x - u).abs() + 1e-6 >= (sizes[i].0 + sizes[j].0) / 2.0;
                    prop_assert!(apart || y != v, "{} {}", i, j);
                }
            }
            for (line, (from, to)) in l.lines.iter().zip(&edges) {
                prop_assert!(line.windows(2).all(|p| p[0].1 < p[1].1), "{} {}", from, to);
            }
        }
    }
}

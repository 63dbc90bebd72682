//! The time of one product, from those that a recording has: the same product, else one of the same type and another
//! size, else one of another type.

use super::recorded::ProductTime;
use ggml::gguf::types::StoredType;
use ggml::model_shape::WeightProduct;

/// A time with its bounds, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    pub ns: f64,
    pub least: f64,
    pub most: f64,
}

/// What an estimate follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    Measured,
    Scaled,
    OtherType,
}

impl Origin {
    pub fn name(self) -> &'static str {
        match self {
            Origin::Measured => "measured",
            Origin::Scaled => "scaled",
            Origin::OtherType => "other type",
        }
    }
}

impl Estimate {
    /// Within this share on either side.
    pub fn within(ns: f64, share: f64) -> Estimate {
        Estimate { ns, least: ns * (1.0 - share).max(0.0), most: ns * (1.0 + share) }
    }

    pub fn times(self, n: f64) -> Estimate {
        Estimate { ns: self.ns * n, least: self.least * n, most: self.most * n }
    }

    /// Errors of one recording point the same way: bounds are summed.
    pub fn plus(self, other: Estimate) -> Estimate {
        Estimate { ns: self.ns + other.ns, least: self.least + other.least, most: self.most + other.most }
    }
}

/// The estimate of a product, what it follows from, and the type if it is another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProductEstimate {
    pub time: Estimate,
    pub origin: Origin,
    pub from: StoredType,
}

/// Uncertainty of a measured time, and for each doubling of a size that lies between.
const MEASURED: f64 = 0.03;
const DOUBLING: f64 = 0.02;
/// Most that is allowed for sizes.
const MOST: f64 = 0.3;
/// Factor between the prefill times of types whose kernels differ.
const KERNELS: f64 = 3.0;
/// On either side of the range of another type: blocks are unpacked differently.
const UNPACK: f64 = 0.05;

/// How a product is computed.
#[derive(Debug, Clone, Copy)]
pub struct Multiplied {
    /// Tokens at once.
    pub columns: u64,
    /// 10^9 bytes/s that memory delivers at most, if known.
    pub gb_per_s: Option<f64>,
}

/// Estimates one execution. `None`: there is no product to start from.
pub fn estimate(p: &WeightProduct, times: &[ProductTime], how: Multiplied) -> Option<ProductEstimate> {
    if let Some(found) = same_type(p, times, how) {
        return Some(found);
    }
    let bits = |ty: StoredType| ty.bytes_each().ln();
    let known = times.iter().filter(|t| t.ty.block > 1 || p.ty.block == 1);
    let nearest = |t: &&ProductTime| {
        let odd = !same_size(p, t);
        ((bits(t.ty) - bits(p.ty)).abs() * 1e3) as u64 * 2 + u64::from(odd)
    };
    let other = known.min_by_key(nearest).or_else(|| times.iter().min_by_key(nearest))?.ty;
    let as_other = WeightProduct { ty: other, ..p.clone() };
    let base = same_type(&as_other, times, how)?.time;
    let time = if how.columns > 1 {
        Estimate { ns: base.ns, least: base.least / KERNELS, most: base.most * KERNELS }
    } else {
        retyped(base, (as_other.bytes(1), p.bytes(1)), how.gb_per_s)
    };
    Some(ProductEstimate { time, origin: Origin::OtherType, from: other })
}

/// The time with another number of bytes for the same elements: in proportion to the bytes, which came closest in trials
/// of types that are unpacked alike. The range reaches to a kernel that arithmetic limits: only the difference in bytes is
/// paid, at the rate of memory.
fn retyped(base: Estimate, (old, new): (f64, f64), gb_per_s: Option<f64>) -> Estimate {
    let by_bytes = |ns: f64| ns * new / old.max(1.0);
    let by_kernel = |ns: f64| match gb_per_s {
        Some(rate) => (ns + (new - old) / rate).max(new / rate),
        None => ns,
    };
    let all = |ns: f64| [by_bytes(ns), by_kernel(ns)];
    let least = all(base.least).into_iter().fold(f64::INFINITY, f64::min) * (1.0 - UNPACK);
    let most = all(base.most).into_iter().fold(0.0, f64::max) * (1.0 + UNPACK);
    Estimate { ns: by_bytes(base.ns), least, most }
}

fn same_size(p: &WeightProduct, t: &ProductTime) -> bool {
    (t.k, t.m) == (p.k, p.m) && experts(p) == (t.experts, t.used)
}

/// Experts, and those that a token uses.
fn experts(p: &WeightProduct) -> (u64, u64) {
    p.experts.map_or((1, 1), |e| (e.all, e.used))
}

fn same_type(p: &WeightProduct, times: &[ProductTime], how: Multiplied) -> Option<ProductEstimate> {
    let one = how.columns <= 1;
    let known = || times.iter().filter(|t| t.ty == p.ty && (t.columns <= 1) == one);
    // The time of one token goes with the bytes, that of many with the operations.
    let size = |k: u64, m: u64, used: f64| k as f64 * m as f64 * used;
    let used = if one { p.used(1) } else { experts(p).1 as f64 };
    let wanted = size(p.k, p.m, used) * how.columns as f64;
    let of = |t: &ProductTime| {
        let used = if t.experts > 1 && !one { experts(p).1 } else { t.used };
        size(t.k, t.m, used as f64) * t.columns.max(1) as f64
    };
    let far = |t: &ProductTime| (wanted / of(t).max(1.0)).log2().abs();
    let alike = |t: &&ProductTime| (t.experts > 1) == p.experts.is_some();
    let nearest = |t: &&ProductTime| {
        let exact = (t.k, t.m) == (p.k, p.m);
        (u64::from(!alike(t)), u64::from(!exact), (far(t) * 1e3) as u64)
    };
    let found = known().min_by_key(nearest)?;
    let same = (found.k, found.m) == (p.k, p.m) && alike(&found);
    let distance = far(found);
    let share = (MEASURED + DOUBLING * distance + if alike(&found) { 0.0 } else { 0.1 }).min(MOST);
    let origin = if same && distance < 0.5 { Origin::Measured } else { Origin::Scaled };
    let ns = found.ns * wanted / of(found).max(1.0);
    Some(ProductEstimate { time: Estimate::within(ns, share), origin, from: p.ty })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ggml::model_shape::ExpertCount;

    fn ty(name: &str) -> StoredType {
        StoredType::named(name).expect("known")
    }

    fn time(name: &str, k: u64, m: u64, ns: f64) -> ProductTime {
        ProductTime { ty: ty(name), k, m, experts: 1, used: 1, columns: 1, count: 4.0, ns }
    }

    fn product(name: &str, k: u64, m: u64) -> WeightProduct {
        let (name, ty) = (String::new(), ty(name));
        WeightProduct { name, ty, k, m, experts: None, count: 4, head: false }
    }

    const ONE: Multiplied = Multiplied { columns: 1, gb_per_s: Some(20.0) };

    #[test]
    fn the_same_product_takes_the_same_time_and_a_larger_one_more() {
        let times = [time("q4_0", 2048, 2048, 1e5), time("q4_0", 2048, 8192, 3.6e5)];
        let same = estimate(&product("q4_0", 2048, 8192), &times, ONE).unwrap();
        assert_eq!((same.origin, same.time.ns), (Origin::Measured, 3.6e5));
        let twice = estimate(&product("q4_0", 2048, 16_384), &times, ONE).unwrap();
        assert_eq!((twice.origin, twice.time.ns), (Origin::Scaled, 7.2e5));
        assert!(twice.time.most / twice.time.ns > same.time.most / same.time.ns);
        assert_eq!(estimate(&product("q4_0", 64, 64), &[], ONE), None);
    }

    #[test]
    fn another_type_goes_with_its_bytes_and_its_range_to_the_kernel() {
        let times = [time("q4_0", 2048, 2048, 2e5)];
        let bytes = |name: &str| product(name, 2048, 2048).bytes(1);
        let found = estimate(&product("q8_0", 2048, 2048), &times, ONE).unwrap();
        assert_eq!((found.origin, found.from.name), (Origin::OtherType, "q4_0"));
        let (by_bytes, by_peak) = (2e5 * 34.0 / 18.0, 2e5 + (bytes("q8_0") - bytes("q4_0")) / 20.0);
        assert!((found.time.ns - by_bytes).abs() < 1.0);
        assert!(found.time.least < by_peak && by_bytes < found.time.most);
        // The nearest type by size is taken.
        let both = [time("q4_0", 2048, 2048, 2e5), time("q6_K", 2048, 2048, 3e5)];
        assert_eq!(estimate(&product("q8_0", 2048, 2048), &both, ONE).unwrap().from.name, "q6_K");
        // With many tokens, kernels of types differ by a factor.
        let many = Multiplied { columns: 64, ..ONE };
        let times = [ProductTime { columns: 64, ..times[0].clone() }];
        let found = estimate(&product("q8_0", 2048, 2048), &times, many).unwrap().time;
        assert!(found.most > 2.9 * found.ns && found.least < found.ns / 2.9);
    }

    #[test]
    fn experts_are_those_used() {
        let used = ProductTime { experts: 60, used: 4, ..time("q4_0", 512, 256, 4e4) };
        let experts = Some(ExpertCount { all: 60, used: 8 });
        let p = WeightProduct { experts, ..product("q4_0", 512, 256) };
        assert_eq!(estimate(&p, &[used.clone(), time("q4_0", 512, 256, 9e9)], ONE).unwrap().time.ns, 8e4);
        // 100 tokens use all of them, but compute with eight each.
        let many = Multiplied { columns: 100, ..ONE };
        let prompt = ProductTime { used: 60, columns: 50, ..used };
        let found = estimate(
            &WeightProduct { experts: Some(ExpertCount { all: 60, used: 4 }), ..p },
            &[prompt],
            many,
        );
        assert_eq!(found.unwrap().time.ns, 8e4);
    }
}

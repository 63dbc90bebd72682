//! Records of kernels as CUPTI writes them. Their type grows at its end from version to version; what is read of it lies
//! at the same place in all of them, held against the headers by tests/gpu/cupti_layout.c.

/// The type of a kernel's record in one range of CUPTI_API_VERSION.
struct Type {
    versions: core::ops::RangeInclusive<u32>,
    /// Bytes of one record.
    size: usize,
}

/// Read in cupti_version.h and cupti_activity.h of CUDA 11.7, 11.8, 12.0, 12.8, 12.9 and 13.0 to 13.5; of older ones, in
/// what these say about them. The library of CUDA 12.0 says 18, as that of 11.8: its record is CUpti_ActivityKernel9,
/// which begins with the 200 bytes of CUpti_ActivityKernel8.
const TYPES: [Type; 10] = [
    Type { versions: 10..=12, size: 144 }, // CUpti_ActivityKernel4: CUDA 9.0 to 10.2
    Type { versions: 13..=14, size: 160 }, // CUpti_ActivityKernel5: CUDA 11.0, 11.1
    Type { versions: 15..=16, size: 168 }, // CUpti_ActivityKernel6: CUDA 11.2 to 11.5
    Type { versions: 17..=17, size: 176 }, // CUpti_ActivityKernel7: CUDA 11.6, 11.7
    Type { versions: 18..=18, size: 200 }, // CUpti_ActivityKernel8: CUDA 11.8
    Type { versions: 19..=28, size: 208 }, // CUpti_ActivityKernel9: CUDA 12.0 to 12.9
    Type { versions: 130_000..=130_099, size: 216 }, // CUpti_ActivityKernel10: CUDA 13.0
    Type { versions: 130_100..=130_299, size: 224 }, // CUpti_ActivityKernel11: CUDA 13.1, 13.2
    Type { versions: 130_300..=130_399, size: 232 }, // CUpti_ActivityKernel12: CUDA 13.3
    Type { versions: 130_400..=130_599, size: 248 }, // CUpti_ActivityKernel13: CUDA 13.4, 13.5
];

/// Offsets of the fields that are read, in each of the types.
mod at {
    pub const KIND: usize = 0;
    pub const START: usize = 16;
    pub const END: usize = 24;
    pub const DEVICE: usize = 40;
    pub const CONTEXT: usize = 44;
    pub const STREAM: usize = 48;
    pub const CORRELATION: usize = 92;
    pub const NAME: usize = 104;
    pub const QUEUED: usize = 120;
    pub const SUBMITTED: usize = 128;
    /// Since CUpti_ActivityKernel5.
    pub const GRAPH_NODE: usize = 144;
}

/// Bytes of a kernel's record with this version of CUPTI (cuptiGetVersion); None: not known.
pub fn size(version: u32) -> Option<usize> {
    TYPES.iter().find(|t| t.versions.contains(&version)).map(|t| t.size)
}

/// What is read of a kernel's record. Times in ns on CUPTI's clock; 0: CUPTI does not know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    pub start: u64,
    pub end: u64,
    pub queued: u64,
    pub submitted: u64,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    /// Identifies the call that launched it.
    pub correlation: u32,
    /// Address of its name; 0: none.
    pub name: u64,
    /// It was launched as a node of a CUDA graph. Always false with records before CUpti_ActivityKernel5.
    pub in_graph: bool,
}

/// A record that is no kernel's, or is not whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    OtherKind,
    Truncated,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_ne_bytes)
}

/// The kernel in the record at the beginning of these bytes, which takes `size` of them.
pub fn kernel(bytes: &[u8], size: usize) -> Result<Kernel, Unread> {
    match u32_at(bytes, at::KIND) {
        Some(crate::api::CONCURRENT_KERNEL) => {}
        Some(_) => return Err(Unread::OtherKind),
        None => return Err(Unread::Truncated),
    }
    let record = bytes.get(..size).ok_or(Unread::Truncated)?;
    let read = || {
        Some(Kernel {
            start: u64_at(record, at::START)?,
            end: u64_at(record, at::END)?,
            queued: u64_at(record, at::QUEUED)?,
            submitted: u64_at(record, at::SUBMITTED)?,
            device: u32_at(record, at::DEVICE)?,
            context: u32_at(record, at::CONTEXT)?,
            stream: u32_at(record, at::STREAM)?,
            correlation: u32_at(record, at::CORRELATION)?,
            name: u64_at(record, at::NAME)?,
            in_graph: u64_at(record, at::GRAPH_NODE).is_some_and(|node| node != 0),
        })
    };
    read().ok_or(Unread::Truncated)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 10] = [144, 160, 168, 176, 200, 208, 216, 224, 232, 248];

    fn put(record: &mut [u8], at: usize, value: &[u8]) {
        record[at..at + value.len()].copy_from_slice(value);
    }

    /// A record of this size, with another value in each field.
    fn record(size: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; size];
        put(&mut bytes, 0, &10u32.to_ne_bytes());
        for (at, value) in [(16, 1_001u64), (24, 1_002), (104, 1_003), (120, 1_004), (128, 1_005)] {
            put(&mut bytes, at, &value.to_ne_bytes());
        }
        for (at, value) in [(40, 7u32), (44, 8), (48, 9), (92, 10)] {
            put(&mut bytes, at, &value.to_ne_bytes());
        }
        if size >= 152 {
            put(&mut bytes, 144, &0u64.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn a_kernel_is_read_in_each_of_the_types() {
        let expected = Kernel {
            start: 1_001,
            end: 1_002,
            queued: 1_004,
            submitted: 1_005,
            device: 7,
            context: 8,
            stream: 9,
            correlation: 10,
            name: 1_003,
            in_graph: false,
        };
        for size in SIZES {
            let mut bytes = record(size);
            assert_eq!(kernel(&bytes, size), Ok(expected), "{size}");
            // Whatever follows it.
            bytes.extend([0xff; 40]);
            assert_eq!(kernel(&bytes, size), Ok(expected), "{size}");
            if size > 144 {
                put(&mut bytes, 144, &5u64.to_ne_bytes());
                assert_eq!(kernel(&bytes, size), Ok(Kernel { in_graph: true, ..expected }));
            }
        }
    }

    #[test]
    fn a_version_has_the_type_of_its_header() {
        let of = [
            (12, Some(144)),
            (13, Some(160)),
            (15, Some(168)),
            (17, Some(176)),
            (18, Some(200)),
            (19, Some(208)),
            (28, Some(208)),
            (130_000, Some(216)),
            (130_001, Some(216)),
            (130_100, Some(224)),
            (130_201, Some(224)),
            (130_301, Some(232)),
            (130_401, Some(248)),
            (130_500, Some(248)),
        ];
        of.iter().for_each(|(version, expected)| assert_eq!(size(*version), *expected, "{version}"));
    }

    #[test]
    fn an_unknown_version_has_no_type() {
        let unknown = [0, 9, 29, 129_999, 130_600, 140_000, u32::MAX];
        unknown.iter().for_each(|version| assert_eq!(size(*version), None, "{version}"));
    }

    #[test]
    fn a_record_that_is_cut_anywhere_is_not_read() {
        for size in SIZES {
            let bytes = record(size);
            for len in 0..size {
                assert_eq!(kernel(&bytes[..len], size), Err(Unread::Truncated), "{len} of {size}");
            }
        }
    }

    #[test]
    fn other_kinds_are_told_from_truncated_ones() {
        let mut bytes = record(248);
        put(&mut bytes, 0, &4u32.to_ne_bytes());
        assert_eq!(kernel(&bytes, 248), Err(Unread::OtherKind));
        assert_eq!(kernel(&bytes[..4], 248), Err(Unread::OtherKind));
        assert_eq!(kernel(&bytes[..3], 248), Err(Unread::Truncated));
    }

    /// Bytes of any content and length are read without a fault, and only whole kernels are kernels.
    #[test]
    fn any_bytes_are_accepted() {
        let mut state = 0x2545_f491_4f6c_dd1du64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..200_000 {
            let len = (random() % 300) as usize;
            let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| random().to_ne_bytes()).collect();
            bytes.truncate(len);
            if random() % 4 != 0 && len >= 4 {
                put(&mut bytes, 0, &10u32.to_ne_bytes());
            }
            let size = SIZES[random() as usize % SIZES.len()];
            assert_eq!(kernel(&bytes, size).is_ok(), len >= size && bytes[..4] == 10u32.to_ne_bytes());
        }
    }
}

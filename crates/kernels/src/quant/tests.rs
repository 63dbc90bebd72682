use super::*;

fn block(ty: TensorType, x: &[f32; 32]) -> Vec<u8> {
    let mut out = vec![0; ty.block_bytes()];
    encode(ty, x, &mut out).expect("a whole block");
    out
}

#[test]
fn sizes_are_those_of_ggml_common_h() {
    let sizes: Vec<_> = TensorType::ALL.iter().map(|t| (t.id(), t.block(), t.block_bytes())).collect();
    let expected = [
        (0, 1, 4),
        (1, 1, 2),
        (2, 32, 18),
        (3, 32, 20),
        (8, 32, 34),
        (12, 256, 144),
        (13, 256, 176),
        (14, 256, 210),
        (20, 32, 18),
        (23, 256, 136),
        (30, 1, 2),
        (39, 32, 17),
    ];
    assert_eq!(sizes, expected);
    assert_eq!(TensorType::from_id(8), Some(TensorType::Q8_0));
    assert_eq!(TensorType::from_id(31), None);
    assert_eq!(TensorType::Q4_0.row_bytes(64), Some(36));
    assert_eq!(TensorType::Q4_0.row_bytes(33), None);
    assert_eq!(TensorType::F32.row_bytes(u64::MAX), None);
}

#[test]
fn q4_0_by_hand() {
    // -8..=7 and its mirror: d = -8/-8 = 1, so the low nibbles are x + 8; 8.5 - 8 truncates to 0.
    let mut x = [0.0f32; 32];
    for j in 0..16 {
        x[j] = j as f32 - 8.0;
        x[j + 16] = 7.0 - j as f32;
    }
    let out = block(TensorType::Q4_0, &x);
    assert_eq!(&out[..2], &[0x00, 0x3c]);
    let expected: Vec<u8> = (0..16u8).map(|j| j | ((15 - j) << 4)).collect();
    assert_eq!(&out[2..], &expected[..]);
}

#[test]
fn q4_0_takes_the_sign_of_the_first_largest_value() {
    let mut x = [0.0f32; 32];
    x[3] = 4.0;
    x[20] = -4.0;
    let out = block(TensorType::Q4_0, &x);
    // d = 4/-8 = -0.5 = 0xb800; x[3] -> -8 + 8.5 = 0; x[20] -> 8 + 8.5 = 16 -> 15; zeros -> 8.
    assert_eq!(&out[..2], &[0x00, 0xb8]);
    assert_eq!(out[2 + 3], 0x80);
    assert_eq!(out[2 + 4], 0xf8);
    assert_eq!(out[2], 0x88);
}

#[test]
fn zeros_keep_the_reference_s_negative_scale() {
    let out = block(TensorType::Q4_0, &[0.0; 32]);
    assert_eq!(&out[..2], &[0x00, 0x80]);
    assert!(out[2..].iter().all(|b| *b == 0x88));
    assert_eq!(block(TensorType::Q8_0, &[0.0; 32]), vec![0; 34]);
    assert_eq!(block(TensorType::Q4_0, &[-0.0; 32])[..2], [0x00, 0x80]);
}

#[test]
fn q8_0_by_hand() {
    let mut x = [0.0f32; 32];
    // amax 127 -> d = 1: ties go away from zero.
    x[..6].copy_from_slice(&[127.0, -127.0, 0.5, -0.5, 2.49, -1.51]);
    let out = block(TensorType::Q8_0, &x);
    assert_eq!(&out[..2], &[0x00, 0x3c]);
    assert_eq!(&out[2..9], &[127, 0x81, 1, 0xff, 2, 0xfe, 0]);
    // The float just below one half stays zero.
    x[2] = 0.5f32.next_down();
    assert_eq!(block(TensorType::Q8_0, &x)[4], 0);
}

#[test]
fn halves_round_to_even_past_a_slice_border() {
    let mut row = vec![1.0f32; 300];
    row[299] = 1.0 + 1.0 / 2048.0;
    row[298] = 65520.0;
    let mut out = vec![0; 600];
    encode(TensorType::F16, &row, &mut out).expect("sizes match");
    assert_eq!(&out[594..], &[0x00, 0x3c, 0x00, 0x7c, 0x00, 0x3c]);
}

#[test]
fn wrong_sizes_are_errors() {
    let mut out = [0; 18];
    assert!(matches!(encode(TensorType::Q4_0, &[0.0; 31], &mut out), Err(QuantError::Size { .. })));
    assert!(matches!(encode(TensorType::Q4_0, &[0.0; 64], &mut out), Err(QuantError::Size { .. })));
}

#[test]
fn bf16_rounds_to_even_and_keeps_nan() {
    let bits = |v: u32| f32::from_bits(v);
    let row = [1.0, bits(0x3f80_8000), bits(0x3f81_8000), bits(0x3f80_8001), f32::NAN];
    let mut out = [0; 10];
    encode(TensorType::BF16, &row, &mut out).expect("sizes match");
    assert_eq!(out[..8], [0x80, 0x3f, 0x80, 0x3f, 0x82, 0x3f, 0x81, 0x3f]);
    let mut back = [0.0; 5];
    decode(TensorType::BF16, &out, &mut back).expect("sizes match");
    assert_eq!(back[..4], [1.0, 1.0, bits(0x3f82_0000), bits(0x3f81_0000)]);
    assert!(back[4].is_nan());
}

#[test]
fn q4_1_by_hand() {
    // From 1 to 16 in steps of 1.
    let mut x = [1.0f32; 32];
    for (j, v) in x.iter_mut().take(16).enumerate() {
        *v = 1.0 + j as f32;
    }
    let out = block(TensorType::Q4_1, &x);
    assert_eq!(out[..4], [0x00, 0x3c, 0x00, 0x3c]);
    let expected: Vec<u8> = (0..16).collect();
    assert_eq!(out[4..], expected);
}

/// Blocks of arbitrary bits, but with scales of moderate size: the f16 values at offsets `scales` in each block.
fn blocks(ty: TensorType, scales: &[usize], count: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12345);
        (state >> 16) as u8
    };
    let mut all: Vec<u8> = (0..ty.block_bytes() * count).map(|_| next()).collect();
    for block in all.chunks_exact_mut(ty.block_bytes()) {
        for at in scales {
            block[at + 1] = (block[at + 1] & 0x83) | 0x30;
        }
    }
    all
}

#[test]
fn decodes_as_gguf_py_does() {
    // CRC-32C of the output of `gguf.quants.dequantize` (gguf 0.19) for the same six blocks, as little-endian
    // floats.
    let golden: [(_, &[usize], _, _); 11] = [
        (TensorType::F16, &[0], 0x7fda_9b65u32, 0.211_669_92f32),
        (TensorType::BF16, &[], 0xa9ba_0b7c, 1.315_935_7e38),
        (TensorType::Q8_0, &[0], 0x2c77_f064, -26.882_08),
        (TensorType::Q4_0, &[0], 0x9f34_556c, -1.481_689_5),
        (TensorType::Q4_1, &[0, 2], 0x9501_35ae, 2.562_866_2),
        (TensorType::Q4K, &[0, 2], 0xe8af_bdda, -2.361_572_3),
        (TensorType::Q5K, &[0, 2], 0x31aa_0ff8, 55.847_656),
        (TensorType::Q6K, &[208], 0xe423_43ff, 97.664_06),
        (TensorType::Iq4Nl, &[0], 0xc5b1_e572, -22.013_672),
        (TensorType::Iq4Xs, &[0], 0x8020_0b54, 51.859_13),
        (TensorType::Mxfp4, &[], 0x456d_6c75, -9.444_733e21),
    ];
    for (ty, scales, crc, first) in golden {
        let mut out = vec![0.0; 6 * ty.block()];
        decode(ty, &blocks(ty, scales, 6), &mut out).expect("whole blocks");
        assert_eq!(out[0], first, "{}", ty.name());
        let bytes: Vec<u8> = out.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(crc32c::crc32c(&bytes), crc, "{}", ty.name());
    }
}

#[test]
fn what_is_encoded_comes_back_as_near_as_the_type_allows() {
    let row: Vec<f32> = (0..512).map(|i| ((i * 37 % 101) as f32 - 40.0) / 50.0).collect();
    let power: f32 = row.iter().map(|v| v * v).sum();
    // Noise-to-signal ratio of a uniform quantiser with this many steps over about twice the deviation, rounded
    // up.
    let limits = [0.0, 1e-7, 6e-3, 4e-3, 1e-4, 4e-3, 1e-3, 4e-4, 8e-3, 8e-3, 1e-5, 2e-2];
    for (ty, limit) in TensorType::ALL.into_iter().zip(limits) {
        let mut bytes = vec![0; ty.row_bytes(512).expect("whole blocks") as usize];
        let mut back = vec![0.0; 512];
        encode(ty, &row, &mut bytes).expect("sizes match");
        decode(ty, &bytes, &mut back).expect("sizes match");
        let noise: f32 = row.iter().zip(&back).map(|(a, b)| (a - b) * (a - b)).sum();
        assert!(noise / power <= limit, "{}: {}", ty.name(), noise / power);
    }
}

#[test]
fn zeros_and_extremes_encode_to_finite_rows() {
    let extremes = [[0.0f32; 256], [1e-30; 256], [-3e4; 256], [7e4; 256]];
    for ty in TensorType::ALL {
        for row in &extremes {
            let mut bytes = vec![0; ty.row_bytes(256).expect("whole blocks") as usize];
            let mut back = [1.0; 256];
            encode(ty, row, &mut bytes).expect("sizes match");
            decode(ty, &bytes, &mut back).expect("sizes match");
            // 7e4 exceeds the f16 range, and these types store such values as f16.
            let finite = !matches!(ty, TensorType::F16 | TensorType::Q4_1) || row[0] < 65504.0;
            assert_eq!(back.iter().all(|v| v.is_finite()), finite, "{} of {}", ty.name(), row[0]);
            assert!(row[0] != 0.0 || back == [0.0; 256], "{}", ty.name());
        }
    }
    let mut out = [0.0; 32];
    assert!(matches!(decode(TensorType::Q4_0, &[0; 17], &mut out), Err(QuantError::Size { .. })));
}

//! Names for the 16-byte GUIDs of GGML's backends (`ggml_backend.guid`).
//!
//! Source: the `ggml_backend_*_guid` functions in the GGML repository (src/ggml-*/), all versions from their
//! introduction (February 2024) to August 2026; the values did not change in that time. All 16 bytes are
//! compared: several backends share a prefix with the one they were derived from.

/// Bytes of a GUID.
pub const GUID_BYTES: usize = 16;

/// First bytes of the CPU backend's GUID; no other known one begins with them.
pub const CPU_START: [u8; 8] = [0xaa, 0x67, 0xc7, 0x43, 0x96, 0xe6, 0xa3, 0x8a];

/// One known GUID per line, as a hexadecimal number in memory order, and the name of its backend.
const KNOWN: [(u128, &str); 21] = [
    (0xaa67c743_96e6a38a_e3afea92_36bcfc89, "CPU"),
    // Shared source for NVIDIA, AMD (HIP) and Moore Threads (MUSA).
    (0x2cdde81c_65b36573_6a128861_1cc9dc25, "CUDA/HIP/MUSA"),
    (0xb8f74f86_403ce102_91c8dde9_023fc02b, "Vulkan"),
    (0xb8f74f86_14038602_91c8dde9_023fc02b, "VirtGPU"),
    (0x81a18b1e_71ec79ed_2b85dc8a_619830e6, "Metal"),
    (0x5805138f_cd3a619d_e7cd98a9_03fd7c53, "SYCL"),
    (0xdee070a2_734e4dbc_b0c74fd4_6d4e90fe, "OpenCL"),
    // OpenVINO uses the same GUID as the BLAS backend.
    (0x12a8aef4_c01e6197_8feb3304_a133512d, "BLAS/OpenVINO"),
    (0x99685b6c_d2833d24_253672e1_5b0e1403, "RPC"),
    (0xa194afac_bd4f4734_be1a9e71_1f9eed64, "CANN"),
    (0x67c7a4b1_78744f51_9d65446d_e41b829a, "WebGPU"),
    (0x7b57dcaf_de121d49_11111111_11111111, "Hexagon"),
    // Until July 2025.
    (0x7b57dcaf_de121d49_fb35fa9b_18311dca, "Kompute"),
    // A separate backend from October to December 2024, part of CPU since then.
    (0x13b8a4c4_bafe5167_87445515_b235623e, "AMX"),
    (0x4be07288_c0f629b4_799f7068_710f6dc8, "ET"),
    // Several devices combined in one backend (tensor parallelism).
    (0xf10e34cf_9c6f43cb_9692be8e_bb713fda, "meta"),
    (u128::from_be_bytes(*b"AMD-ZENDNN-ACCEL"), "ZenDNN"),
    // The second backend of our own runner, with the same kernels as the first.
    (u128::from_be_bytes(*b"ggml-runner-2nd!"), "ggml-runner 2"),
    (u128::from_be_bytes(*b"IBM-ZDNN-ACCELER"), "zDNN"),
    // Only in forks of llama.cpp, never upstream.
    (0x74ad7938_c6c74c99_ad2f719e_802726cc, "DirectML"),
    // Rockchip NPUs.
    (0xc9bdb702_49364212_af35a287_d8c92920, "RKNN"),
];

/// The backend with this GUID; `None` if it is unknown.
pub fn name(guid: &[u8; GUID_BYTES]) -> Option<&'static str> {
    let guid = u128::from_be_bytes(*guid);
    KNOWN.iter().find(|(known, _)| *known == guid).map(|(_, name)| *name)
}

/// Whether a backend with this GUID computes off the CPU, so that its work may not be done when it returns.
/// Unknown GUIDs count as devices; an all-zero GUID does not.
pub fn is_device(guid: &[u8; GUID_BYTES]) -> bool {
    *guid != [0; GUID_BYTES] && !name(guid).is_some_and(is_host)
}

/// Whether the backend with this name computes on the CPU and is done when it returns.
pub fn is_host(name: &str) -> bool {
    matches!(name, "CPU" | "BLAS/OpenVINO" | "AMX" | "ZenDNN" | "ggml-runner 2")
}

/// How the names of the functions of this backend's source begin; `None` if it is not known here.
pub fn function_prefix(backend: &str) -> Option<&'static str> {
    Some(match backend {
        "CUDA/HIP/MUSA" => "ggml_cuda_",
        "Vulkan" => "ggml_vk_",
        "OpenCL" => "ggml_cl_",
        "SYCL" => "ggml_sycl_",
        "CANN" => "ggml_cann_",
        "RKNN" => "ggml_rk_",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_compared_in_memory_order_and_all_of_them() {
        let cpu =
            [0xaa, 0x67, 0xc7, 0x43, 0x96, 0xe6, 0xa3, 0x8a, 0xe3, 0xaf, 0xea, 0x92, 0x36, 0xbc, 0xfc, 0x89];
        assert_eq!(name(&cpu), Some("CPU"));
        let start = u128::from(u64::from_be_bytes(CPU_START));
        assert_eq!(KNOWN.iter().filter(|(guid, _)| guid >> 64 == start).count(), 1);
        let mut almost = cpu;
        almost[15] ^= 1;
        assert_eq!(name(&almost), None);
        assert_eq!(name(b"IBM-ZDNN-ACCELER"), Some("zDNN"));
        assert_eq!(name(&[0; 16]), None);
    }

    #[test]
    fn ids_are_distinct() {
        let distinct: std::collections::HashSet<_> = KNOWN.iter().map(|(guid, _)| guid).collect();
        assert_eq!(distinct.len(), KNOWN.len());
    }
}

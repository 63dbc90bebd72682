#version 450
// The kernel of vk_load.c; load.h has the same steps for the host.
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Values { uint x[]; };
layout(push_constant) uniform Push { uint steps; };

void main() {
    uint v = x[gl_GlobalInvocationID.x];
    for (uint i = 0; i < steps; i++) v = v * 1664525u + 1013904223u;
    x[gl_GlobalInvocationID.x] = v;
}

// fp8/encode: the exponent of each block from its largest magnitude, and 8-bit floats relative to it.
// CPU twin: codec::fp8::encode. Fragments: count, fixed, narrow, bits.
// A workgroup owns 8 units; 8 invocations share a block and take its groups of 8 elements in turn.
//   params    Params  in      one per dispatch
//   gradient  any[n]  in      in shaders/input, by input_load4; zero up to whole units
//   packet    u32[]   out     1 + block words per unit: four exponents, then codes, element i in bits 8(i%4)..
//   stats     u32[2]  in/out  adds: non-finite elements, saturated codes

struct Params {
    units: u32,
    columns: u32, // workgroups in one row of the two-dimensional grid
    block: u32, // elements of a block, a multiple of 8
    exponent_bits: u32, // 4 or 5
    digits: u32, // of the mantissa: 3 or 2
    largest: u32, // largest finite code
    last: i32, // 127 + the exponent of the largest code
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> packet: array<u32>;
@group(0) @binding(4) var<storage, read_write> stats: array<atomic<u32>, 2>;

// Largest finite magnitude of each block, as bits.
var<workgroup> magnitudes: array<atomic<u32>, 32>;

// One more than that of the largest magnitude where this would round beyond the largest code; no block has 255.
fn exponent4(bits: vec4<u32>) -> vec4<u32> {
    let exponent = bits >> vec4<u32>(23u);
    let mantissa = bits & vec4<u32>(0x7fffffu);
    let top = narrow_magnitude4(vec4<i32>(params.last), mantissa, params.exponent_bits, params.digits);
    let inside = (exponent != vec4<u32>(0u)) & (exponent != vec4<u32>(254u));
    return exponent + select(vec4<u32>(0u), vec4<u32>(1u), inside & (top > vec4<u32>(params.largest)));
}

// Four codes in one word, and how many were clamped.
fn encode4(bits: vec4<u32>, exponent: u32) -> vec2<u32> {
    let own = (bits >> vec4<u32>(23u)) & vec4<u32>(0xffu);
    let scaled = vec4<i32>(own) + vec4<i32>(params.last - i32(exponent));
    let mantissa = bits & vec4<u32>(0x7fffffu);
    let near = narrow_magnitude4(scaled, mantissa, params.exponent_bits, params.digits);
    let counts = fixed_is_finite(bits) & (own != vec4<u32>(0u));
    let magnitude = select(vec4<u32>(0u), near, counts);
    let clamped = min(magnitude, vec4<u32>(params.largest));
    let sign = (bits >> vec4<u32>(24u)) & vec4<u32>(0x80u);
    let code = select(clamped | sign, vec4<u32>(0u), clamped == vec4<u32>(0u));
    return vec2<u32>(bits_pack4(code, 8u), count_set4(clamped != magnitude));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let first = (workgroup.y * params.columns + workgroup.x) * 8u;
    if first >= params.units {
        return;
    }
    let unit = first + (local >> 5u);
    let block = (local >> 3u) & 3u;
    let pairs = select(0u, params.block >> 3u, unit < params.units); // groups of 8 elements, none behind the last unit
    let source = (4u * unit + block) * (params.block >> 2u);

    var largest = vec4<u32>(0u);
    var nonfinite = 0u;
    for (var pair = local & 7u; pair < pairs; pair += 8u) {
        for (var half = 0u; half < 2u; half += 1u) {
            let bits = input_load4(source + 2u * pair + half);
            let finite = fixed_is_finite(bits);
            largest = max(largest, select(vec4<u32>(0u), bits & vec4<u32>(0x7fffffffu), finite));
            nonfinite += 4u - count_set4(finite);
        }
    }
    atomicMax(&magnitudes[local >> 3u], max(max(largest.x, largest.y), max(largest.z, largest.w)));
    workgroupBarrier();

    let four = (local >> 5u) * 4u;
    let exponents = exponent4(vec4<u32>(
        atomicLoad(&magnitudes[four]),
        atomicLoad(&magnitudes[four + 1u]),
        atomicLoad(&magnitudes[four + 2u]),
        atomicLoad(&magnitudes[four + 3u]),
    ));
    let base = unit * (params.block + 1u);
    if ((local & 31u) == 0u) && (unit < params.units) {
        packet[base] = bits_pack4(exponents, 8u);
    }
    let codes = base + 1u + block * (params.block >> 2u);
    var saturated = 0u;
    for (var pair = local & 7u; pair < pairs; pair += 8u) {
        for (var half = 0u; half < 2u; half += 1u) {
            let encoded = encode4(input_load4(source + 2u * pair + half), exponents[block]);
            packet[codes + 2u * pair + half] = encoded.x;
            saturated += encoded.y;
        }
    }
    count_add(nonfinite, saturated);
}

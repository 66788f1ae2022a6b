// optim/adamw: one step of Adam with decoupled weight decay on the owner's parameters.
// CPU twin: optim::adam::Coefficients::step. Fragments: mean/given.
// Floats, which only the kernels of this folder may have: see gpu::optim, Exactness. The mean comes from the fragment at
// bindings 1 and 2. One invocation owns a group of 8 elements.
//   params      Params   in      one per dispatch
//   parameters  f32[n]   in/out  4 to a vector
//   moments     f32[2n]  in/out  4 to a vector, 4 vectors per group: mean of elements 0..3 and 4..7, then mean square

struct Params {
    units: u32, // groups of 8 elements in this dispatch
    columns: u32, // workgroups in one row of the two-dimensional grid
    ranks: u32, // of a mean that is made here
    elements: u32,
    scale: u32, // of a mean that is made here: f32 bits of its factor
    skip: u32, // group of a given mean where this dispatch begins
    first: u32, // group of `parameters` and `moments` where this dispatch begins
    beta1: f32,
    rest1: f32, // 1 - beta1
    beta2: f32,
    rest2: f32, // 1 - beta2
    epsilon: f32,
    step_size: f32, // learning rate, divided by the bias of the mean
    square_scale: f32, // 1 / the bias of the mean square
    keep: f32, // what weight decay leaves of a parameter
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> parameters: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> moments: array<vec4<f32>>;

// WGSL's root is that of 1 / inverseSqrt, which promises nothing for 0: asked of the bits, as devices flush subnormals.
fn root4(value: vec4<f32>) -> vec4<f32> {
    let normal = (bitcast<vec4<u32>>(value) & vec4<u32>(0x7f800000u)) != vec4<u32>(0u);
    return select(vec4<f32>(), sqrt(value), normal);
}

// `at` is the vector of parameters, `moment` that of the mean; the mean square is two vectors further on.
fn step4(at: u32, moment: u32, gradient: vec4<f32>) {
    let mean = params.beta1 * moments[moment] + params.rest1 * gradient;
    let square = params.beta2 * moments[moment + 2u] + params.rest2 * (gradient * gradient);
    moments[moment] = mean;
    moments[moment + 2u] = square;
    let root = root4(square * params.square_scale) + params.epsilon;
    parameters[at] = parameters[at] * params.keep - params.step_size * (mean / root);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group = (workgroup.y * params.columns + workgroup.x) * 256u + local;
    if group >= params.units {
        return;
    }
    let mean = mean_load8(group);
    let first = params.first + group;
    step4(2u * first, 4u * first, bitcast<vec4<f32>>(mean.low));
    step4(2u * first + 1u, 4u * first + 1u, bitcast<vec4<f32>>(mean.high));
}

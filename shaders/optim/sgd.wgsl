// optim/sgd: one step of gradient descent with momentum on the owner's parameters.
// CPU twin: optim::sgd::Coefficients::step. Fragments: mean/given.
// Floats, which only the kernels of this folder may have: see gpu::optim, Exactness. The mean comes from the fragment at
// bindings 1 and 2. One invocation owns a group of 8 elements.
//   params      Params  in      one per dispatch
//   parameters  f32[n]  in/out  4 to a vector
//   moments     f32[n]  in/out  the velocity, 4 to a vector

struct Params {
    units: u32, // groups of 8 elements in this dispatch
    columns: u32, // workgroups in one row of the two-dimensional grid
    ranks: u32, // of a mean that is made here
    elements: u32,
    scale: u32, // of a mean that is made here: f32 bits of its factor
    skip: u32, // group of a given mean where this dispatch begins
    first: u32, // group of `parameters` and `moments` where this dispatch begins
    momentum: f32,
    weight_decay: f32,
    learning_rate: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> parameters: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> moments: array<vec4<f32>>;

fn step4(at: u32, gradient: vec4<f32>) {
    let old = parameters[at];
    let velocity = params.momentum * moments[at] + (gradient + params.weight_decay * old);
    moments[at] = velocity;
    parameters[at] = old - params.learning_rate * velocity;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group = (workgroup.y * params.columns + workgroup.x) * 256u + local;
    if group >= params.units {
        return;
    }
    let mean = mean_load8(group);
    let at = 2u * (params.first + group);
    step4(at, bitcast<vec4<f32>>(mean.low));
    step4(at + 1u, bitcast<vec4<f32>>(mean.high));
}

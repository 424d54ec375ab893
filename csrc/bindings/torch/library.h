// The operators of each family: their schemas, and their implementations for every device.
#pragma once

#include <torch/csrc/stable/library.h>

namespace posenc::operators {

using Library = torch::stable::detail::StableLibrary;

void define_sinusoidal(Library& m);
void define_rotary(Library& m);
void define_norm_rotary(Library& m);
void define_relative(Library& m);
void define_phases(Library& m);

// The same functions serve every device: they look where their tensors are.
void implement_sinusoidal(Library& m);
void implement_rotary(Library& m);
void implement_norm_rotary(Library& m);
void implement_relative(Library& m);
void implement_phases(Library& m);

// Frequencies in turns: on the CPU, and for calls without a tensor that would name a device.
void implement_turns_on_cpu(Library& m);
void implement_turns_anywhere(Library& m);

// Where the kernels are, for calls that do without the dispatcher: bindings/runners.h.
void define_runners(Library& m);
void implement_runners(Library& m);

}  // namespace posenc::operators

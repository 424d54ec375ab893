// The operators of each family: their schemas, and their implementations for a kind of device.
#pragma once

#include <torch/csrc/stable/library.h>

namespace posenc::operators {

using Library = torch::stable::detail::StableLibrary;

void define_sinusoidal(Library& m);
void define_rotary(Library& m);
void define_relative(Library& m);

// The same functions for every device: they look where their tensors are.
void implement_sinusoidal(Library& m);
void implement_rotary(Library& m);
void implement_relative(Library& m);

// Those of frequencies in turns: on the CPU, and without a tensor that would say where.
void implement_turns_on_cpu(Library& m);
void implement_turns_anywhere(Library& m);

}  // namespace posenc::operators

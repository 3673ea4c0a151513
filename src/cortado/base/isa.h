// The instruction set of the hand-written CPU kernels.
//
// The default is the best one that the machine has. The environment variable CORTADO_ISA or select_isa() chooses
// another: avx512, avx2, sse4, neon, scalar, or aten, which turns the kernels off so that ATen computes everything.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cortado {

// Returns the instruction sets that this machine can run, best first. "aten" is always the last.
std::vector<std::string> available_isas();

// Selects an instruction set by name; "" selects the best. Throws InputError if this machine does not have it. Do not
// call it while a kernel runs.
void select_isa(std::string_view name);

// Returns the name of the selected instruction set.
std::string selected_isa();

// Returns false if "aten" is selected. Cheap: every call of an operator asks.
bool kernels_enabled();

}  // namespace cortado

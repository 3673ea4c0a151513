// Which instruction set the hand-written kernels run with.
//
// The best that the machine has, unless the environment variable CORTADO_ISA or select_isa() names one: avx512, avx2,
// sse4, scalar, or aten, which turns the kernels off: then everything is ATen.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cortado {

// What this machine can run, the best first; "aten" is the last. Never empty.
std::vector<std::string> available_isas();

// "" = the best. Throws InputError if there is no such instruction set here. Not to be called while a kernel runs.
void select_isa(std::string_view name);

// The one in use.
std::string selected_isa();

// False when "aten" is selected. Cheap: asked at every call of an operator.
bool kernels_enabled();

}  // namespace cortado

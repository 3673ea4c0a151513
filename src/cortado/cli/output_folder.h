// Output folders that are there whole or not at all.
#pragma once

#include <functional>
#include <string>

namespace cortado {

// `write` fills a folder beside `out`, which then takes its place. In use or not writable: InputError, before anything
// is done. The first Ctrl-C asks `write` to end with a Failure (base/signals.h) and ends the program. After that,
// and after any error, nothing is left behind.
void write_output_folder(const std::string& out, const std::function<void(const std::string&)>& write);

}  // namespace cortado

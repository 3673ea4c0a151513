// Pathfinder's pictures as Long Range Arena distributes them: PNG files, and lines of text that say what is on them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cortado/tasks/examples.h"

namespace cortado {

// A picture of a folder such as lra_release's pathfinder32/curv_contour_length_14.
struct PathfinderFile {
  std::string path;
  bool connected;
};

// The pictures that FOLDER/metadata/*.npy name, batch after batch; empty files, of which the release has one, are left
// out. InputError: no such folder, a line that is none of theirs.
std::vector<PathfinderFile> pathfinder_files(const std::string& folder);

// The grey values of a picture of size x size pixels, row by row. InputError: another size, or no PNG.
std::vector<uint8_t> read_grey_png(const std::string& path, int64_t size);
void write_grey_png(const std::string& path, const std::vector<uint8_t>& pixels, int64_t size);

// FOLDER/imgs and FOLDER/metadata of a task with the input "tokens" or "numbers": the first examples of each split, in
// the order train, validation, test, 8 to 1 to 1, so that reading them divides them so again.
void write_pathfinder(const TaskExamples& task, const std::string& folder, int64_t most);

}  // namespace cortado

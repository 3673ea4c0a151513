#include "cortado/http/page.h"

#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/base/files.h"

namespace cortado {

namespace {

std::string type_of(const std::string& extension) {
  static const std::map<std::string, std::string> kTypes = {{".html", "text/html; charset=utf-8"},
                                                            {".js", "text/javascript; charset=utf-8"},
                                                            {".css", "text/css; charset=utf-8"},
                                                            {".svg", "image/svg+xml"},
                                                            {".png", "image/png"},
                                                            {".json", "application/json"},
                                                            {".txt", "text/plain; charset=utf-8"}};
  const auto found = kTypes.find(extension);
  return found == kTypes.end() ? "application/octet-stream" : found->second;
}

}  // namespace

Page built_in_page() {
  Page page;
  for (const auto& [name, bytes] : built_in_files()) {
    page["/" + name] = {type_of(std::filesystem::path(name).extension()), std::string(bytes)};
  }
  if (const auto index = page.find("/index.html"); index != page.end()) page["/"] = index->second;
  return page;
}

Page read_page(const std::string& folder) {
  namespace fs = std::filesystem;
  fail_input_if(!fs::is_regular_file(folder + "/index.html"), "[serve] ", folder, " has no index.html");
  Page page;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const auto& path = entry.path();
    page["/" + fs::relative(path, folder).generic_string()] = {type_of(path.extension()), read_file(path)};
  }
  page["/"] = page.at("/index.html");
  return page;
}

}  // namespace cortado

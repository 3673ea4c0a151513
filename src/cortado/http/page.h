// The files of the page that a server shows at /.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace cortado {

struct PageFile {
  std::string type;  // "text/html; charset=utf-8"
  std::string bytes;
};
using Page = std::map<std::string, PageFile>;  // by path: "/", "/app.js"

// What was built into the program, by name (cmake/Page.cmake); nothing if the page was not built.
std::map<std::string, std::string_view> built_in_files();
Page built_in_page();

// Those of a folder, index.html as "/" too. InputError: there is no index.html.
Page read_page(const std::string& folder);

}  // namespace cortado

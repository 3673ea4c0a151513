// The files of the web page that the server shows at /.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace cortado {

// A file with its media type.
struct PageFile {
  std::string type;  // "text/html; charset=utf-8"
  std::string bytes;
};
using Page = std::map<std::string, PageFile>;  // by path: "/", "/app.js"

// Returns the files built into the program, by name (cmake/Page.cmake); none if it was built without the page.
std::map<std::string, std::string_view> built_in_files();
Page built_in_page();

// Returns the files of a folder; index.html is also "/". Throws InputError without index.html.
Page read_page(const std::string& folder);

}  // namespace cortado

# Puts the page of `cortado serve`, which `make` builds into web/dist, into the program: page_source is a source file
# with the page's files (http/page.h). Without web/dist it has none, and the program says so.
file(GLOB page_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/web/dist/*)
set(page_source ${CMAKE_BINARY_DIR}/page.cpp)
set(data "")
set(entries "")
set(number 0)
foreach(file ${page_files})
  get_filename_component(name ${file} NAME)
  string(APPEND data "asm(\".section .rodata\\n.hidden page_${number}, page_${number}_end\\n.global page_${number}, page_${number}_end\\n\"
    \"page_${number}: .incbin \\\"${file}\\\"\\npage_${number}_end:\\n.previous\");
extern \"C\" const char page_${number}[], page_${number}_end[];\n")
  string(APPEND entries "    {\"${name}\", {page_${number}, page_${number}_end}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(CONFIGURE OUTPUT ${page_source} CONTENT "// Made by cmake/Page.cmake.
#include \"cortado/http/page.h\"

@data@
namespace cortado {

std::map<std::string, std::string_view> built_in_files() {
  return {
@entries@  };
}

}  // namespace cortado
" @ONLY)
set_source_files_properties(${page_source} PROPERTIES OBJECT_DEPENDS "${page_files}" SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)

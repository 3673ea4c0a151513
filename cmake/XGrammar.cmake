# Makes the target cortado_xgrammar if scripts/fetch_sources.sh has fetched XGrammar's sources. With it
# src/cortado/serve/xgrammar.cpp is compiled, else serve/no_xgrammar.cpp, which refuses grammars.
# Does not use XGrammar's CMakeLists.txt, which sets -flto, -O3 and -Werror and builds a Python module. XGrammar's
# messages go to our code (XGRAMMAR_LOG_CUSTOMIZE), because a server's log must not hold a request's text.
file(STRINGS ${CMAKE_SOURCE_DIR}/requirements-sources.txt xgrammar_pin REGEX "^xgrammar==")
string(REGEX REPLACE "^xgrammar==([^ ]+) .*" "\\1" xgrammar_version "${xgrammar_pin}")
set(xgrammar_dir ${CMAKE_SOURCE_DIR}/build/sources/xgrammar-${xgrammar_version})
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/requirements-sources.txt)
file(GLOB_RECURSE xgrammar_sources CONFIGURE_DEPENDS ${xgrammar_dir}/cpp/*.cc)
list(FILTER xgrammar_sources EXCLUDE REGEX "/tvm_ffi/")
if(NOT xgrammar_sources)
  message(STATUS "no sources of XGrammar in ${xgrammar_dir}: cortado serve cannot enforce JSON (`make setup` fetches them)")
  return()
endif()

# Compiled alone: it needs no torch, and only it uses the library's headers.
set_source_files_properties(src/cortado/serve/xgrammar.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON
  COMPILE_OPTIONS "-isystem;${xgrammar_dir}/include;-isystem;${xgrammar_dir}/3rdparty/dlpack/include")
add_library(cortado_xgrammar STATIC ${xgrammar_sources})
target_include_directories(cortado_xgrammar PRIVATE ${xgrammar_dir}/include ${xgrammar_dir}/3rdparty/dlpack/include
  ${xgrammar_dir}/3rdparty/picojson)
target_compile_definitions(cortado_xgrammar PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
target_compile_options(cortado_xgrammar PRIVATE -w $<$<CONFIG:Release>:-O1>)
set_target_properties(cortado_xgrammar PROPERTIES CXX_STANDARD 17 CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
  UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 7)

# XGrammar's licence must be distributed with the program.
install(FILES ${xgrammar_dir}/LICENSE ${xgrammar_dir}/NOTICE DESTINATION ${CMAKE_INSTALL_DATADIR}/cortado/licences/xgrammar)

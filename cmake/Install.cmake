# `cmake --install`: program, libraries, headers, configs and corpus, and what find_package(cortado) needs.
include(CMakePackageConfigHelpers)

set_target_properties(cortado cortado_ops cortado_commands PROPERTIES INSTALL_RPATH "$ORIGIN;${CORTADO_TORCH_DIR}/lib")
install(TARGETS cortado cortado_ops cortado_sentencepiece cortado_commands LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
set_target_properties(cortado_cli PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
install(TARGETS cortado_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY src/cortado DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "pch.h" EXCLUDE PATTERN "cli" EXCLUDE)
install(DIRECTORY configs data DESTINATION ${CMAKE_INSTALL_DATADIR}/cortado)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cortado)
configure_package_config_file(cmake/cortadoConfig.cmake.in ${CMAKE_BINARY_DIR}/cortadoConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/cortadoConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/cortadoConfig.cmake ${CMAKE_BINARY_DIR}/cortadoConfigVersion.cmake
  cmake/Libtorch.cmake DESTINATION ${package_dir})

// See CMakeLists.txt: a target that owns precompiled headers has a source.
int main() {}

// A library that is no plug-in.
int nothing_for_ejkernel() { return 0; }
